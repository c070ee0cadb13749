import type { Readable } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';

const maxLine = 16 * 1024;

/** Calls `line` for each line of a child's output. What is longer than 16 KiB is cut: one line must not eat the memory. */
export function eachLine(stream: Readable, line: (text: string) => void): void {
  const decoder = new StringDecoder('utf8');
  let rest = '';
  const take = (text: string) => {
    const lines = (rest + text).split('\n');
    rest = (lines.pop() ?? '').slice(0, maxLine);
    for (const complete of lines) if (complete !== '') line(complete.slice(0, maxLine));
  };
  stream.on('data', (chunk: Buffer) => take(decoder.write(chunk)));
  stream.on('error', () => {});
  stream.on('close', () => {
    if (rest !== '') line(rest);
    rest = '';
  });
}
