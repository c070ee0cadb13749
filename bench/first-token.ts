/** A streaming HTTP client that does nothing but look at the clock when the first token's text arrives. */
import { connect, type Socket } from 'node:net';

/** Text of a token, not the empty one that opens an answer. */
const tokenText = /"(?:content|text)":"[^"]/;
const lastChunk = '\r\n0\r\n\r\n';

export interface FirstTokenClient {
  /** Milliseconds from sending the request to the first token; resolves at the end of the answer. Rejects on any other status than 200. */
  ask(path: string, body: string): Promise<number>;
  close(): void;
}

export async function openFirstTokenClient(port: number): Promise<FirstTokenClient> {
  const socket: Socket = connect({ port, host: '127.0.0.1', noDelay: true });
  await new Promise<void>((resolve, reject) => {
    socket.once('connect', resolve);
    socket.once('error', reject);
  });
  socket.setEncoding('utf8');
  return {
    ask(path, body) {
      return new Promise<number>((resolve, reject) => {
        let text = '';
        let first = Number.NaN;
        const finish = (settle: () => void) => {
          socket.off('data', onData);
          socket.off('close', onClose);
          settle();
        };
        const onClose = () => finish(() => reject(new Error('the server closed the connection')));
        const onData = (chunk: string) => {
          text += chunk;
          if (Number.isNaN(first) && tokenText.test(text)) first = performance.now() - start;
          if (!/^HTTP\/1\.1 200/.test(text)) finish(() => reject(new Error(text.slice(0, 500))));
          else if (text.endsWith(lastChunk)) finish(() => resolve(first));
        };
        socket.on('data', onData);
        socket.once('close', onClose);
        const start = performance.now();
        socket.write(
          `POST ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
        );
      });
    },
    close: () => socket.destroy(),
  };
}
