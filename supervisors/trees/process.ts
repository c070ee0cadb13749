/** What the trees of all roles share: the bus, the post, the kernel, and how a process comes to its end. */
import { createKernel, type ExitReason, type Kernel, type Log, type Ref, systemWorld } from '../../actors/index.js';
import {
  type Address,
  type BusState,
  connectNats,
  createPost,
  deadLetter,
  type Envelope,
  encodeCbor,
  type NatsBus,
  type PostOffice,
  subjects,
} from '../../transport/index.js';
import type { GatewayBoot, RunningTree, WorkerBoot } from '../boot.js';
import { type FaultDoor, openFaultDoor } from '../faults.js';

export interface Process {
  readonly bus: NatsBus;
  readonly post: PostOffice;
  readonly kernel: Kernel;
  readonly log: (actor: string) => Log;
  readonly faults: FaultDoor | undefined;
  /** Runs when the process ends, before its actors do; last registered first. A throw is logged and stops no other. */
  onEnd(close: Close): void;
  /** The same after the actors have ended: native handles are freed when nobody is left who uses them. */
  afterActors(close: Close): void;
  /**
   * The end of any of these actors is the end of the process: its tree is rest_for_one with an intensity of zero, and the node
   * supervisor starts all of it anew under another incarnation (docs/decisions/0008).
   */
  essential(actor: Ref<never>): void;
  tree(parts: { drain(deadlineMs: number): Promise<void>; facts(): Record<string, number | string> }): RunningTree;
}

type Close = () => void | Promise<void>;

const kernelStopMs = 1_000;
/** Of a process's time to start, what is left when it gives up waiting for the broker. */
const startMarginMs = 2_000;

export async function openProcess(boot: WorkerBoot | GatewayBoot, log: (actor: string) => Log): Promise<Process> {
  const own = log('process');
  const bus = await connectNats({
    url: boot.nats.url,
    namespace: boot.namespace,
    user: boot.nats.user,
    password: boot.nats.pass,
    name: boot.incarnation,
    // A worker that starts while the broker is away waits for it; giving up would only make it start again.
    connectTimeoutMs: Math.max(1_000, boot.config.node.startMs - startMarginMs),
    patient: true,
    onProblem: (problem, error) =>
      own.error(problem, { error: error instanceof Error ? error.message : String(error) }),
  });
  const post = createPost(bus);
  const faults = boot.config.faults.enabled ? openFaultDoor() : undefined;
  const world = systemWorld({ post, log });
  const bare = createKernel({ world: faults?.world(world) ?? world });
  const kernel = faults?.kernel(bare) ?? bare;
  // What an actor could not handle is kept where people look for it, like what could not be read.
  kernel.onDeadLetter(({ to, message, reason, error }) => {
    if (reason !== 'failed') return;
    // What came from outside is kept as it came. A local message may hold sockets and prompts: of that, its type says enough.
    const { id, type, attempt = 0, ...rest } = message as Partial<Envelope> & { readonly num?: number };
    const kept = id === undefined ? { type, attempt, num: rest.num } : message;
    const subject = subjects(boot.namespace).mail(to as Address);
    const detail = `${type}: ${error?.message ?? ''}`;
    deadLetter(bus, boot.role, { code: 'NET_HANDLER', detail, subject, seq: 0, attempt, bytes: encodeCbor(kept) });
  });
  const before: Close[] = [];
  const after: Close[] = [];

  let settle: (reason: ExitReason) => void = () => {};
  const exit = new Promise<ExitReason>((resolve) => {
    settle = resolve;
  });
  let ending = false;

  async function end(reason: ExitReason): Promise<void> {
    if (ending) return;
    ending = true;
    const actors = () => kernel.shutdown(kernelStopMs);
    const wire: Close[] = [() => post.close(), () => bus.close()];
    for (const close of [...before.reverse(), actors, ...after.reverse(), ...wire]) {
      try {
        await close();
      } catch (error) {
        own.error('closing failed', { error: error instanceof Error ? error.message : String(error) });
      }
    }
    settle(reason);
  }

  bus.onState((state: BusState) => {
    if (state === 'closed') void end({ kind: 'error', error: new Error('the broker refused this process for good') });
  });

  return {
    bus,
    post,
    kernel,
    log,
    faults,
    onEnd: (close) => void before.push(close),
    afterActors: (close) => void after.push(close),
    essential: (actor) =>
      void kernel.exit(actor).then((reason) => {
        if (ending) return;
        if (reason.kind === 'error') own.error('an actor ended', { actor: actor.path, error: reason.error.message });
        void end(reason.kind === 'error' ? reason : { kind: 'error', error: new Error(`${actor.path} ended`) });
      }),
    tree: ({ drain, facts }) => ({
      exit,
      facts,
      ...(faults && { faults }),
      async drain(deadlineMs) {
        try {
          await drain(deadlineMs);
        } finally {
          await end({ kind: 'shutdown' });
        }
      },
      kill: () => settle({ kind: 'killed' }),
    }),
  };
}
