/** What a scenario can do and expect: each step is one line of it, written down with its times. */
import type { NodeStatus } from '../../supervisors/index.js';
import type { Phase } from './load.js';

export interface NodeShape {
  /** @default 2 */
  readonly prefill?: number;
  /** @default 2 */
  readonly decode?: number;
  /** @default 1 */
  readonly gateways?: number;
  /** Of a worker. @default the configuration's */
  readonly slots?: number;
  /** An engine step; 0 = the timing formula of the mock engine. @default 8 */
  readonly stepMs?: number;
  /** Each process reaches the broker through a proxy, which partition and slowLink need. */
  readonly links?: boolean;
  /** The node's folder is a file system of this size; needs to be root. */
  readonly diskMiB?: number;
  /** Further settings, e.g. { DYNACT_ROUTING_QUEUE_LENGTH: '4' }. */
  readonly env?: Readonly<Record<string, string>>;
  readonly flags?: readonly string[];
}

export interface Load {
  /** @default 16 */
  readonly streams?: number;
  /** Of each answer. @default 120 */
  readonly tokens?: number;
  /** Of each prompt, one token each. @default 60 */
  readonly words?: number;
  /** Clients that stop reading for so long, in ms, after their first text. @default 0 */
  readonly pauseReadingMs?: number;
  /** All prompts begin alike. @default false */
  readonly samePrefix?: boolean;
}

export interface Story {
  /** Real processes with the mock engine. With a node that runs already only its shape is checked. */
  startNode(shape?: NodeShape): Promise<void>;
  /** Begins to send requests; they go on while further steps are taken. */
  runLoad(load?: Load): Promise<void>;
  /** Until requests of the last load are in this phase. Fails if they end before. */
  until(phase: Phase): Promise<void>;
  /** SIGKILL. `nats`, `node` and every instance of status, e.g. `decode-0`. */
  kill(instance: string): Promise<void>;
  /** SIGTERM. */
  terminate(instance: string): Promise<void>;
  /** SIGSTOP for so long, then SIGCONT if it still lives. */
  freeze(instance: string, ms: number): Promise<void>;
  /** A kill of the broker, and the wait until its successor is up. */
  restartNats(): Promise<void>;
  /** No byte passes between the process and the broker for so long. */
  partition(instance: string, ms: number): Promise<void>;
  /** The connection breaks and cannot be made anew for so long. */
  cutLink(instance: string, ms: number): Promise<void>;
  /** What passes between the process and the broker passes later, from now on. 0 = as before. */
  slowLink(instance: string, delayMs: number): Promise<void>;
  /** The next block that a prefill worker exports arrives with other bytes than it promises. */
  corruptKvBlock(instance: string): Promise<void>;
  /** The wall clock of a process goes ahead of the machine's, or behind it. */
  skewClock(instance: string, offsetMs: number): Promise<void>;
  /** The next message of an actor makes it throw, e.g. `router`. */
  throwIn(instance: string, actor: string): Promise<void>;
  /** The next message of an actor never returns, and its process stands still. */
  hang(instance: string, actor: string): Promise<void>;
  /** The engine takes no further step. */
  wedge(instance: string): Promise<void>;
  /** Fills the node's folder to the last byte; it has one of its own with `diskMiB`. */
  fillDisk(): Promise<void>;
  freeDisk(): Promise<void>;
  /** So many clients of the last load close their connections. */
  leave(clients: number): Promise<void>;
  /** `dynact restart --rolling`, to its end. */
  rollingRestart(): Promise<void>;
  /** Lets time pass. */
  wait(ms: number): Promise<void>;

  /** Every request that no client left ends with all its tokens, within `withinMs` (60,000). */
  expectAllComplete(withinMs?: number): Promise<void>;
  /** Every request ends somehow: complete, or with an error code that `codes` matches. Nothing hangs. */
  expectAllEnd(codes: RegExp, withinMs?: number): Promise<void>;
  /** At least so many requests of the last load were refused with an error that matches. After expectAllEnd. */
  expectRefused(codes: RegExp, least: number): Promise<void>;
  /** Texts are those of the same requests on a node of its own where nothing happens. */
  expectTextEqualsBaseline(): Promise<void>;
  /** Nothing is held for requests any more, and every process is up. */
  expectNoLeak(): Promise<void>;
  /** No answer stood still for longer after the first fault. */
  expectPauseUnder(ms: number): Promise<void>;
  /** A process was started anew at least so often. */
  expectRestarts(instance: string, least: number): Promise<void>;
  /** Of the last load, no worker of a role had more than `share` of the requests; looked at while they run. */
  expectSpread(role: 'prefill' | 'decode', share: number): Promise<void>;
  /** New requests are answered. */
  expectServes(): Promise<void>;
  /** Anything else about the status. */
  expectStatus(what: string, test: (status: NodeStatus) => boolean): Promise<void>;
}

export type StepName = keyof Story;

export interface Scenario {
  /** A sentence. */
  readonly title: string;
  /** Where others meet it: an item of Dynamo's tests, or a report of its users. */
  readonly after: string;
  tell(story: Story): Promise<void>;
}

/** The default export of a scenario's file. */
export const scenario = (plot: Scenario): Scenario => plot;
