/** A JSON answer in one piece. */
import type { Exchange } from './exchange.js';

export function writeWhole({ raw, startedAt }: Exchange, body: string): void {
  raw.writeHead(200, {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    'openai-processing-ms': String(Math.round(performance.now() - startedAt)),
  });
  raw.end(body);
}
