/**
 * An operating-system process as a supervised child. Configuration and credentials travel over the IPC channel; the
 * channel is also how a child learns that its parent is gone.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { ExitReason } from '../actors/index.js';
import type { ListenHandle } from './boot.js';
import { settings } from './config-schema.js';
import { SupervisorError } from './errors.js';
import type { Fault } from './faults.js';
import { mintIncarnation } from './incarnation.js';
import type { BootMessage, Facts, FromChild, Role, ToChild } from './ipc.js';
import { eachLine } from './lines.js';
import type { Child, Running } from './otp/index.js';
import type { GatewayAnswer, GatewayQuestion } from './route-question.js';
import { watchChild } from './watchdog.js';

export interface ProcessSpec {
  readonly role: Role;
  /** Stable over restarts, e.g. `decode-0`. */
  readonly instance: string;
  /** Script that serves `role <role>`: the dynact command itself. */
  readonly script: string;
  /** Cores to run on, e.g. `0-1`, by taskset; undefined = wherever the scheduler likes. */
  readonly cpus?: string | undefined;
  /** A ready child that says nothing for this long is killed. */
  readonly silentMs: number;
  /** So is one whose engine takes no step for this long although work is queued. */
  readonly stuckMs: number;
  /** What the child is told; called at each start. */
  boot(incarnation: string): { readonly message: BootMessage; readonly handle?: ListenHandle };
  /** A line the child wrote. */
  line(text: string): void;
  spawned(pid: number, incarnation: string): void;
  /** At once when the process is gone, ready or not. `reason` is for people: `signal SIGKILL`, `exit code 1: …`. */
  exited(pid: number, incarnation: string, reason: string): void;
}

/** What is known of the present life, or of the last one. */
export interface ProcessSnapshot {
  readonly pid: number | undefined;
  readonly draining: boolean;
  readonly facts: Facts;
  readonly rssBytes: number;
  /** How the last life ended, for people; '' while it is the first. */
  readonly lastExit: string;
}

export interface OsProcess extends Child {
  snapshot(): ProcessSnapshot;
  /** Throws while there is no process. */
  inject(fault: Fault): void;
  /** Of a gateway. Resolves with an error in it when there is no process, or no answer in time. */
  ask(question: GatewayQuestion): Promise<GatewayAnswer>;
}

const answerMs = 3_000;
const keptLines = 5;
const settingNames = new Set(
  settings.flatMap(({ env, schema }) => [env, ...(schema.alias ?? []).map(({ name }) => name)]),
);

export function osProcess(spec: ProcessSpec): OsProcess {
  let snapshot: ProcessSnapshot = { pid: undefined, draining: false, facts: {}, rssBytes: 0, lastExit: '' };
  const update = (change: Partial<ProcessSnapshot>) => {
    snapshot = { ...snapshot, ...change };
  };
  let child: ChildProcess | undefined;
  const launched = (process: ChildProcess) => {
    child = process;
  };
  let questions = 0;
  return {
    snapshot: () => snapshot,
    ask: (question) => ask(spec, child, ++questions, question),
    start: (abort) => live(spec, update, launched, abort),
    inject(fault) {
      if (child?.connected !== true) throw new Error('the process is not up');
      tellChild(child, { type: 'fault', fault }, () => {});
    },
  };
}

function ask(
  { instance }: ProcessSpec,
  child: ChildProcess | undefined,
  id: number,
  question: GatewayQuestion,
): Promise<GatewayAnswer> {
  return new Promise((resolve) => {
    const done = (answer: GatewayAnswer) => {
      clearTimeout(late);
      child?.off('message', hear);
      resolve(answer);
    };
    const failed = (error: string) => done({ gateway: instance, error });
    const hear = (raw: unknown) => {
      const message = raw as FromChild;
      if (message.type === 'answer' && message.id === id) done(message.answer);
    };
    const late = setTimeout(() => failed(`no answer within ${answerMs} ms`), answerMs);
    if (child === undefined) return failed('the process is not up');
    child.on('message', hear);
    tellChild(child, { type: 'question', id, question }, () => failed('the process is not up'));
  });
}

function live(
  spec: ProcessSpec,
  update: (change: Partial<ProcessSnapshot>) => void,
  launched: (child: ChildProcess) => void,
  abort: AbortSignal,
): Promise<Running> {
  return new Promise((resolve, reject) => {
    if (abort.aborted)
      return reject(new SupervisorError('SUP_START_FAILED', [spec.instance, 'it is no longer wanted']));
    const incarnation = mintIncarnation(spec.instance);
    const child = launch(spec);
    launched(child);
    const pid = child.pid;
    const tail: string[] = [];
    let ready = false;
    let asked: 'no' | 'stop' | 'kill' = 'no';
    let lastWords = '';
    let wordsKind: ExitReason['kind'] | undefined;
    let settle: (reason: ExitReason) => void = () => {};
    const exit = new Promise<ExitReason>((done) => {
      settle = done;
    });

    const kill = () => {
      if (asked !== 'kill' && child.exitCode === null && child.signalCode === null) {
        asked = 'kill';
        child.kill('SIGKILL');
      }
    };
    const watchdog = watchChild(spec, (why) => {
      lastWords = why;
      child.kill('SIGKILL');
    });
    const running: Running = {
      incarnation,
      exit,
      stop: (deadlineMs) => {
        if (asked === 'no') {
          asked = 'stop';
          watchdog.stop();
          update({ draining: true });
          // A child in its last breath has no channel any more; the signal says the same.
          tellChild(child, { type: 'drain', deadlineMs: Math.min(deadlineMs, 2 ** 31 - 1) }, () =>
            child.kill('SIGTERM'),
          );
        }
        return exit;
      },
      kill,
    };

    const ended = (code: number | null, signal: NodeJS.Signals | null, error?: Error) => {
      watchdog.stop();
      abort.removeEventListener('abort', kill);
      const how = error ? error.message : signal ? `signal ${signal}` : `exit code ${code}`;
      const text = lastWords === '' ? how : `${how}: ${lastWords}`;
      update({ pid: undefined, draining: false, facts: {}, rssBytes: 0, lastExit: text });
      if (pid !== undefined) spec.exited(pid, incarnation, text);
      const failure = new SupervisorError('SUP_CHILD_EXIT', [spec.instance, text], error);
      const reason = reasonOf(asked, code, signal, wordsKind, failure);
      settle(reason);
      if (ready) return;
      const outside = asked === 'no' && (reason.kind === 'killed' || reason.kind === 'shutdown');
      const fault = outside ? 'SUP_START_KILLED' : 'SUP_START_FAILED';
      // The reason is usually in its last lines, which may still be in the pipe.
      const give = () => reject(new SupervisorError(fault, [spec.instance, [text, ...tail].join('\n  ')], error));
      const timer = setTimeout(give, 200);
      child.once('close', () => {
        clearTimeout(timer);
        give();
      });
    };

    // Also for a signal or a message that could not be sent: unheard, it would end this process.
    child.on('error', (error) => {
      if (pid === undefined) ended(null, null, error);
    });
    if (pid === undefined) return;
    child.once('exit', (code, signal) => ended(code, signal));
    abort.addEventListener('abort', kill);
    for (const stream of [child.stdout, child.stderr]) {
      if (stream) {
        eachLine(stream, (text) => {
          if (!ready && tail.push(text) > keptLines) tail.shift();
          spec.line(text);
        });
      }
    }
    child.on('message', (raw) => {
      const message = raw as FromChild;
      watchdog.heard(message);
      if (message.type === 'ready' && !ready) {
        ready = true;
        abort.removeEventListener('abort', kill);
        watchdog.start();
        resolve(running);
      } else if (message.type === 'facts') update({ facts: message.facts, rssBytes: message.rssBytes });
      else if (message.type === 'draining') update({ draining: true });
      else if (message.type === 'ended') {
        wordsKind = message.kind;
        if (lastWords === '') lastWords = message.message;
      }
    });
    update({ pid, draining: false });
    spec.spawned(pid, incarnation);
    const { message, handle } = spec.boot(incarnation);
    tellChild(child, { type: 'boot', boot: message }, kill, handle);
  });
}

function launch(spec: ProcessSpec): ChildProcess {
  const command = [process.execPath, ...process.execArgv.filter((flag) => !flag.startsWith('--inspect'))];
  command.push(spec.script, 'role', spec.role);
  if (spec.cpus !== undefined) command.unshift('taskset', '-c', spec.cpus);
  // Settings reach the child over IPC; left in its environment, secrets would be there for others to read.
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !settingNames.has(name)));
  return spawn(command[0] as string, command.slice(1), {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    serialization: 'advanced',
    env,
  });
}

function tellChild(child: ChildProcess, message: ToChild, failed: () => void, handle?: ListenHandle): void {
  if (!child.connected) {
    failed();
    return;
  }
  // The declared types know servers and sockets; a bare handle travels the same way and accepts nothing on our side.
  child.send(message, handle as never, (error) => {
    if (error) failed();
  });
}

function reasonOf(
  asked: 'no' | 'stop' | 'kill',
  code: number | null,
  signal: NodeJS.Signals | null,
  words: ExitReason['kind'] | undefined,
  error: SupervisorError,
): ExitReason {
  if (signal === 'SIGKILL' || asked === 'kill') return { kind: 'killed' };
  if (code === 0) return asked === 'stop' || words === 'shutdown' ? { kind: 'shutdown' } : { kind: 'normal' };
  if (asked === 'stop' && signal === 'SIGTERM') return { kind: 'shutdown' };
  return signal === null || signal === 'SIGSEGV' || signal === 'SIGABRT'
    ? { kind: 'error', error }
    : { kind: 'killed' };
}
