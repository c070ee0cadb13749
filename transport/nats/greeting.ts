import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { NetError } from '../errors.js';
import type { ProcessIdentity } from './process-identity.js';
import { type Files, readIdentity } from './server-folder.js';

/** Waits until the server on the port says that it is ours and has JetStream, and its keeper, which may be slower, who it is. */
export async function answering(
  host: string,
  port: number,
  name: string,
  exited: Promise<{ readonly code: number | null }>,
  files: Files,
  readyMs: number,
): Promise<ProcessIdentity> {
  const deadline = performance.now() + readyMs;
  let gone: { readonly code: number | null } | undefined;
  void exited.then((exit) => {
    gone = exit;
  });
  for (;;) {
    if (gone) {
      const log = tail(files.log);
      if (/address already in use/.test(log)) throw new NetError('NET_PORT_IN_USE', { port, host });
      // The keeper's exit code is the server's, as a shell says it: 128 and the signal.
      if (gone.code !== null && gone.code > 128) throw new NetError('NET_SERVER_KILLED', { signal: gone.code - 128 });
      throw new NetError('NET_SERVER_EXIT', { exit: `code ${gone.code}`, log });
    }
    const info = await serverInfo(host, port);
    if (info?.server_name === name) {
      if (info.jetstream !== true) throw new NetError('NET_NO_JETSTREAM', { url: `nats://${host}:${port}` });
      const server = readIdentity(files.pid);
      if (server) return server;
    }
    if (performance.now() > deadline) {
      throw new NetError('NET_SERVER_EXIT', { exit: `silent for ${readyMs} ms`, log: tail(files.log) });
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The INFO line a server greets with. */
function serverInfo(host: string, port: number): Promise<{ server_name?: unknown; jetstream?: unknown } | undefined> {
  return new Promise((resolve) => {
    const socket = connect({ host, port });
    let text = '';
    const done = (value: { server_name?: unknown } | undefined) => {
      socket.destroy();
      resolve(value);
    };
    socket.setTimeout(1_000, () => done(undefined));
    socket.once('error', () => done(undefined));
    socket.once('close', () => done(undefined));
    socket.on('data', (data) => {
      text += data.toString('utf8');
      const end = text.indexOf('\r\n');
      if (end < 0 && text.length < 65_536) return;
      try {
        done(JSON.parse(text.slice('INFO '.length, end)));
      } catch {
        done(undefined);
      }
    });
  });
}

function tail(file: string): string {
  try {
    return readFileSync(file, 'utf8').trim().split('\n').slice(-5).join(' | ').slice(-800);
  } catch {
    return 'no log';
  }
}
