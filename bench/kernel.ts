/**
 * How many local messages a second the actor kernel carries, beside nact alone in the same run on the same machine.
 * One actor: a burst waits in its mailbox. Ping-pong: one message in flight between two actors, so each costs a turn of
 * the event loop.
 */
import * as nact from 'nact';
import { type Behaviour, createKernel, type Log, type Ref, systemWorld } from '../actors/index.js';
import { address, type Post } from '../transport/index.js';
import type { Bench } from './bench.js';
import { figure, ratio } from './outcome.js';

interface KernelRates {
  /** Messages per second, median of the rounds. */
  readonly oneActor: { readonly kernel: number; readonly nact: number };
  readonly pingPong: { readonly kernel: number; readonly nact: number };
  /** 1,000 actors share the same number of messages. */
  readonly thousandActors: { readonly kernel: number; readonly nact: number };
  /** Heap per idle actor, bytes. */
  readonly bytesPerActor: number;
}

interface KernelLoad {
  /** Messages per round. Default 200,000. */
  readonly messages?: number;
  /** Default 5; the first is thrown away. */
  readonly rounds?: number;
}

const silent: Log = { debug() {}, info() {}, warn() {}, error() {} };
const unreachable = (): never => {
  throw new Error('no post in this benchmark');
};
const post: Post = { command: unreachable, frame: unreachable, step: unreachable, query: unreachable };

const world = systemWorld({ post, log: () => silent });
const at = (name: string) => address('node', 'bench', name);

/** Counts down to `done`. */
function sink(messages: number, done: () => void): Behaviour<number, { left: number }> {
  return {
    name: 'sink',
    capacity: messages,
    start: () => ({ left: messages }),
    handle(state) {
      if (--state.left === 0) done();
      return state;
    },
  };
}

interface Ball {
  readonly from: Ref<Ball>;
  readonly left: number;
}

function player(done: () => void): Behaviour<Ball, null> {
  return {
    name: 'player',
    start: () => null,
    handle(state, ball, ctx) {
      if (ball.left === 0) done();
      else ctx.tell(ball.from, { from: ctx.self, left: ball.left - 1 });
      return state;
    },
  };
}

async function rate(rounds: number, messages: number, round: () => Promise<void>): Promise<number> {
  const rates: number[] = [];
  for (let index = 0; index < rounds; index++) {
    const start = performance.now();
    await round();
    if (index > 0) rates.push((messages * 1000) / (performance.now() - start));
  }
  rates.sort((a, b) => a - b);
  return Math.round(rates[Math.floor(rates.length / 2)] as number);
}

function kernelBurst(actors: number, messages: number): Promise<void> {
  const kernel = createKernel({ world });
  const each = messages / actors;
  return new Promise<void>((resolve) => {
    let left = actors;
    const done = (): void => {
      if (--left === 0) resolve();
    };
    // Letters stand for digits: an actor's name has none.
    const name = (index: number) => `s${[...String(index)].map((digit) => 'abcdefghij'[Number(digit)]).join('')}`;
    const refs = Array.from({ length: actors }, (_, index) => kernel.spawn(sink(each, done), at(name(index))));
    for (let index = 0; index < each; index++) for (const ref of refs) kernel.tell(ref, index);
  }).then(() => kernel.shutdown(1000));
}

async function nactBurst(actors: number, messages: number): Promise<void> {
  const system = nact.start();
  const each = messages / actors;
  await new Promise<void>((resolve) => {
    let left = actors;
    const refs = Array.from({ length: actors }, (_, index) =>
      nact.spawn(
        system,
        (state: { left: number } = { left: each }) => {
          if (--state.left === 0 && --left === 0) resolve();
          return state;
        },
        `sink-${index}`,
      ),
    );
    for (let index = 0; index < each; index++) for (const ref of refs) nact.dispatch(ref as nact.Ref<number>, index);
  });
  nact.stop(system);
}

async function kernelPingPong(messages: number): Promise<void> {
  const kernel = createKernel({ world });
  await new Promise<void>((resolve) => {
    const ping = kernel.spawn(player(resolve), at('ping'));
    const pong = kernel.spawn(player(resolve), at('pong'));
    kernel.tell(pong, { from: ping, left: messages });
  });
  await kernel.shutdown(1000);
}

async function nactPingPong(messages: number): Promise<void> {
  interface NactBall {
    readonly from: nact.Ref<NactBall>;
    readonly left: number;
  }
  const system = nact.start();
  await new Promise<void>((resolve) => {
    const spawn = (name: string): nact.Ref<NactBall> =>
      nact.spawn(
        system,
        (_state: undefined, ball: NactBall, ctx: { readonly self: nact.Ref<NactBall> }) => {
          if (ball.left === 0) resolve();
          else nact.dispatch(ball.from, { from: ctx.self, left: ball.left - 1 });
        },
        name,
      ) as nact.Ref<NactBall>;
    const ping = spawn('ping');
    nact.dispatch(spawn('pong'), { from: ping, left: messages });
  });
  nact.stop(system);
}

async function bytesPerActor(): Promise<number> {
  const count = 20_000;
  const letters = (index: number) => `s${[...String(index)].map((digit) => 'abcdefghij'[Number(digit)]).join('')}`;
  const kernel = createKernel({ world });
  const names = Array.from({ length: count }, (_, index) => at(letters(index)));
  const idle = sink(1, () => {});
  globalThis.gc?.();
  const before = process.memoryUsage().heapUsed;
  for (const name of names) kernel.spawn(idle, name);
  globalThis.gc?.();
  const bytes = (process.memoryUsage().heapUsed - before) / count;
  await kernel.shutdown(1000);
  return Math.round(bytes);
}

/** Rates of the kernel and of nact alone. Takes a few seconds; bytes per actor are exact only under `--expose-gc`. */
async function kernelRates({ messages = 200_000, rounds = 5 }: KernelLoad): Promise<KernelRates> {
  const both = async (kernel: () => Promise<void>, raw: () => Promise<void>) => ({
    kernel: await rate(rounds, messages, kernel),
    nact: await rate(rounds, messages, raw),
  });
  return {
    oneActor: await both(
      () => kernelBurst(1, messages),
      () => nactBurst(1, messages),
    ),
    thousandActors: await both(
      () => kernelBurst(1000, messages),
      () => nactBurst(1000, messages),
    ),
    pingPong: await both(
      () => kernelPingPong(messages),
      () => nactPingPong(messages),
    ),
    bytesPerActor: await bytesPerActor(),
  };
}

export const kernelBench: Bench = {
  summary: 'local messages per second of the actor kernel, beside nact alone',
  help: `  --messages N        messages per round (200000)
  --rounds N          rounds, of which the first is thrown away (5)`,
  options: { messages: { type: 'string' }, rounds: { type: 'string' } },
  async run(options) {
    const rates = await kernelRates({
      ...(options.messages === undefined ? {} : { messages: Number(options.messages) }),
      ...(options.rounds === undefined ? {} : { rounds: Number(options.rounds) }),
    });
    const { oneActor, thousandActors, pingPong, bytesPerActor } = rates;
    return {
      figures: [
        figure('one_actor', 'to one actor', 'messages/s', oneActor.kernel, { atLeast: 1_000_000 }),
        ratio('one_actor_ratio', 'to one actor, beside nact', 'messages/s', oneActor.kernel, oneActor.nact),
        ratio(
          'thousand_actors_ratio',
          'to a thousand actors',
          'messages/s',
          thousandActors.kernel,
          thousandActors.nact,
        ),
        ratio('ping_pong_ratio', 'one message between two actors', 'messages/s', pingPong.kernel, pingPong.nact),
        figure('bytes_per_actor', 'heap of an idle actor', 'bytes', bytesPerActor),
      ],
      details: { ...rates },
    };
  },
};
