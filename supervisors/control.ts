/**
 * The node's control socket: a Unix socket of mode 0600 in a 0700 folder, one JSON request line, one JSON answer line. The
 * connection of a `stop` stays open until the node has ended, so its end is the news that it has. A `restart` is answered with a line for each
 * step and a last one; whoever closes the connection calls the rest off.
 */
import { chmod, rm } from 'node:fs/promises';
import { connect, createServer, type Socket } from 'node:net';
import { describe, SupervisorError } from './errors.js';
import type { Fault } from './faults.js';
import { eachLine } from './lines.js';
import type { Node } from './node.js';
import type { RestartProgress, RestartRequest } from './restart.js';
import {
  type GatewayAnswer,
  type GatewayQuestion,
  gatewayQuestion,
  type RouteAnswer,
  type RouteQuestion,
  type SettingAnswer,
  type SettingQuestion,
} from './route-question.js';
import { lockHolder } from './state-dir.js';
import type { NodeStatus } from './status.js';

export type ControlRequest =
  | { readonly type: 'status' }
  | { readonly type: 'stop'; readonly now: boolean }
  | { readonly type: 'fault'; readonly instance: string; readonly fault: Fault }
  | { readonly type: 'ask'; readonly question: GatewayQuestion }
  | ({ readonly type: 'restart' } & RestartRequest);

/** A restart takes as long as processes drain and start; meanwhile the node says that it lives, and who hears nothing for long gives up. */
type RestartLine = { readonly progress: RestartProgress } | { readonly alive: true } | RestartEnd;
type RestartEnd = { readonly done: true } | { readonly error: string };
const aliveMs = 1_000;

export interface ControlHandlers {
  status(): Promise<NodeStatus>;
  stop(now: boolean): void;
  /** Throws if the node has no door for faults, or no such process. */
  fault(instance: string, fault: Fault): void;
  restart: Node['restart'];
  /** Asks every gateway. */
  ask(question: GatewayQuestion): Promise<readonly GatewayAnswer[]>;
}

/** A prompt may be in it. */
const maxRequestBytes = 256 * 1024;
/** Gateways answer within seconds, or their node does for them. */
const routeMs = 10_000;
const maxAnswerBytes = 4 * 1024 * 1024;

export async function serveControl(path: string, handlers: ControlHandlers): Promise<() => void> {
  // The lock is held, so whatever lies here belongs to a node that was killed.
  await rm(path, { force: true });
  const open = new Set<Socket>();
  const server = createServer((socket) => {
    open.add(socket);
    socket.on('close', () => open.delete(socket));
    socket.on('error', () => socket.destroy());
    socket.setTimeout(10_000, () => socket.destroy());
    readLine(socket, maxRequestBytes, (line) => answer(socket, line, handlers));
  });
  server.maxConnections = 64;
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(path, resolve);
  });
  await chmod(path, 0o600);
  return () => {
    server.close();
    for (const socket of open) socket.destroy();
  };
}

function answer(socket: Socket, line: string, handlers: ControlHandlers): void {
  const reply = (value: unknown) => socket.write(`${JSON.stringify(value)}\n`);
  try {
    const request = JSON.parse(line) as ControlRequest;
    if (request.type === 'status') {
      void handlers
        .status()
        .then(reply, (error) => reply({ error: describe(error) }))
        .finally(() => socket.end());
    } else if (request.type === 'stop') {
      socket.setTimeout(0);
      reply({ stopping: true });
      handlers.stop(request.now === true);
    } else if (request.type === 'fault') {
      handlers.fault(request.instance, request.fault);
      reply({ injected: true });
      socket.end();
    } else if (request.type === 'ask') {
      handlers
        .ask(gatewayQuestion(request.question))
        .then(reply, (error) => reply({ error: describe(error) }))
        .finally(() => socket.end());
    } else if (request.type === 'restart') {
      socket.setTimeout(0);
      const { instances, all, inPlace } = request;
      if (!Array.isArray(instances)) throw new TypeError('instances is not a list');
      const alive = setInterval(() => reply({ alive: true }), aliveMs);
      const order = { instances: instances.map(String), all: all === true, inPlace: inPlace === true };
      handlers
        .restart(
          order,
          (progress) => reply({ progress }),
          () => socket.destroyed,
        )
        .then(
          () => reply({ done: true }),
          (error) => reply({ error: describe(error) }),
        )
        .finally(() => {
          clearInterval(alive);
          socket.end();
        });
    } else throw new TypeError('unknown request');
  } catch (error) {
    reply({ error: error instanceof Error ? error.message : String(error) });
    socket.end();
  }
}

/** Rejects with SUP_NO_NODE. */
export async function nodeStatus(stateDir: string, timeoutMs = 5000): Promise<NodeStatus> {
  return (await ask(stateDir, { type: 'status' }, timeoutMs)).answer as NodeStatus;
}

/** Resolves when the node has ended. Rejects with SUP_NO_NODE. */
export async function stopNode(stateDir: string, now: boolean, timeoutMs: number): Promise<void> {
  const { ended } = await ask(stateDir, { type: 'stop', now }, timeoutMs);
  await ended;
}

/** What every gateway's router has to say. Rejects with SUP_NO_NODE. */
export async function askRoute(stateDir: string, question: RouteQuestion): Promise<readonly RouteAnswer[]> {
  return (await askGateways(stateDir, question)) as readonly RouteAnswer[];
}

/** What is set, after it was changed if that was asked. Rejects with SUP_NO_NODE. */
export async function askSettings(stateDir: string, question: SettingQuestion): Promise<readonly SettingAnswer[]> {
  return (await askGateways(stateDir, question)) as readonly SettingAnswer[];
}

async function askGateways(stateDir: string, question: GatewayQuestion): Promise<readonly GatewayAnswer[]> {
  const { answer } = await ask(stateDir, { type: 'ask', question }, routeMs);
  if (!Array.isArray(answer)) throw new TypeError((answer as { readonly error: string }).error);
  return answer as readonly GatewayAnswer[];
}

/** Injects a fault into a process of a node that was started with `faults.enabled`. Rejects with SUP_NO_NODE or SUP_FAULT. */
export async function injectFault(stateDir: string, instance: string, fault: Fault, timeoutMs = 5000): Promise<void> {
  const { answer } = await ask(stateDir, { type: 'fault', instance, fault }, timeoutMs);
  const { error } = answer as { readonly error?: string };
  if (error !== undefined) throw new SupervisorError('SUP_FAULT', [instance, error]);
}

/**
 * Restarts processes one after the other and tells each step. Resolves when all are back. Rejects with SUP_NO_NODE, or with SUP_RESTART at the
 * first that cannot be replaced. A node that says nothing for `frozenMs` is frozen: SUP_NO_NODE.
 */
export async function restartNode(
  stateDir: string,
  request: RestartRequest,
  report: (progress: RestartProgress) => void,
  frozenMs = 15_000,
): Promise<void> {
  const holder = await lockHolder(stateDir);
  if (!holder) throw new SupervisorError('SUP_NO_NODE', [stateDir]);
  const socket = connect(holder.control);
  socket.setTimeout(frozenMs, () => socket.destroy());
  let last: RestartEnd | undefined;
  eachLine(socket, (text) => {
    const line = JSON.parse(text) as RestartLine;
    if ('progress' in line) report(line.progress);
    else if (!('alive' in line)) last = line;
  });
  socket.write(`${JSON.stringify({ type: 'restart', ...request })}\n`);
  // Errors end in a close, too.
  await new Promise<void>((resolve) => socket.once('close', () => resolve()));
  if (last === undefined) throw new SupervisorError('SUP_NO_NODE', [stateDir]);
  if ('error' in last) throw new SupervisorError('SUP_RESTART_FAILED', [last.error]);
}

async function ask(
  stateDir: string,
  request: ControlRequest,
  timeoutMs: number,
): Promise<{ answer: unknown; ended: Promise<void> }> {
  const holder = await lockHolder(stateDir);
  if (!holder) throw new SupervisorError('SUP_NO_NODE', [stateDir]);
  return new Promise((resolve, reject) => {
    const fail = (cause: unknown) => reject(new SupervisorError('SUP_NO_NODE', [stateDir], cause));
    const socket = connect(holder.control);
    const ended = new Promise<void>((done) => socket.once('close', () => done()));
    socket.setTimeout(timeoutMs, () => socket.destroy(new Error(`no answer within ${timeoutMs} ms`)));
    socket.on('error', fail);
    socket.once('close', () => fail(new Error('the node closed the connection')));
    socket.on('connect', () => socket.write(`${JSON.stringify(request)}\n`));
    readLine(socket, maxAnswerBytes, (line) => {
      try {
        resolve({ answer: JSON.parse(line), ended });
      } catch (error) {
        fail(error);
      }
    });
  });
}

/** The first line that arrives; a longer one than `limit` ends the connection. */
function readLine(socket: Socket, limit: number, take: (line: string) => void): void {
  const chunks: Buffer[] = [];
  let bytes = 0;
  const onData = (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > limit) {
      socket.destroy(new Error('line too long'));
      return;
    }
    chunks.push(chunk);
    if (!chunk.includes(10)) return;
    socket.off('data', onData);
    socket.resume();
    const text = Buffer.concat(chunks).toString('utf8');
    take(text.slice(0, text.indexOf('\n')));
  };
  socket.on('data', onData);
}
