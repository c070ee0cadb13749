/**
 * The cheapest server that could stream the same answers: node:http alone, no model, no routing, no text to make. Arguments: events per
 * answer, milliseconds between two of them. Writes its port to stdout.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

const [events = 64, gapMs = 5] = process.argv.slice(2).map(Number);

const event = (n: number) =>
  `data: {"id":"chatcmpl-0123456789abcdefghij","object":"chat.completion.chunk","created":1700000000,"model":"mock","choices":[{"index":0,"delta":{"content":" token${n}"},"logprobs":null,"finish_reason":null}]}\n\n`;

const server = createServer((request, response) => {
  request.resume();
  request.on('end', () => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.flushHeaders();
    let sent = 0;
    const next = (): void => {
      if (response.destroyed) return;
      if (sent === events) {
        response.end('data: [DONE]\n\n');
        return;
      }
      sent += 1;
      response.write(event(sent));
      setTimeout(next, gapMs);
    };
    next();
  });
});
server.listen(0, '127.0.0.1', () => process.stdout.write(`port ${(server.address() as AddressInfo).port}\n`));
process.on('SIGTERM', () => process.exit(0));
