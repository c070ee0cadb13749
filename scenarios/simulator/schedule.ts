/**
 * What one run of the simulator does, as plain data: who asks for what and when, and what goes wrong. The same schedule gives the same run,
 * to the byte, so a schedule that fails is a bug report, and a spec.
 */
import Type from 'typebox';
import { Compile } from 'typebox/compile';
import { seededRandom } from '../../actors/index.js';
import type { Rates } from './network.js';

const faultKinds = [
  'crash',
  'freeze',
  'wedge',
  'slow',
  'partition',
  'clock-jump',
  'broker-restart',
  'broker-crash',
  'disk-full',
  'drain',
] as const;
export type FaultKind = (typeof faultKinds)[number];

export interface Fault {
  readonly at: number;
  readonly kind: FaultKind;
  /** An instance, e.g. `decode-0` or `node`; '' where it concerns the broker. */
  readonly target: string;
  /** How long it lasts. */
  readonly forMs: number;
}

export interface PlannedRequest {
  readonly at: number;
  readonly gateway: number;
  /** Requests of one group begin with the same tokens. */
  readonly group: number;
  readonly sharedTokens: number;
  readonly ownTokens: number;
  readonly maxTokens: number;
  readonly n: number;
  readonly seed: number;
  /** The client leaves this long after it asked; undefined: it waits for the end. */
  readonly leavesAfterMs?: number;
  /** Which conversation it belongs to, where routers keep those together. */
  readonly session?: number;
  /** What it says to the queue. */
  readonly class?: (typeof classNames)[number];
  readonly priority?: number;
  readonly strictPriority?: number;
}

const classNames = ['chat', 'batch'] as const;

export interface Schedule {
  readonly version: 1;
  readonly seed: number;
  readonly gateways: number;
  readonly prefill: number;
  readonly decode: number;
  readonly slots: number;
  readonly flow: 'prefill-first' | 'decode-first';
  /** Who computes a prompt, as `disagg.policy`. */
  readonly policy: 'always' | 'isl_or_load';
  /** Routers keep sessions where they were; the queue has a class each for `classNames`. */
  readonly sessions?: boolean;
  readonly classes?: boolean;
  /** What a request may take in the queue, and in all; undefined: as usual, which is longer than any run. */
  readonly queueMs?: number;
  readonly totalMs?: number;
  readonly rates: Rates;
  readonly requests: readonly PlannedRequest[];
  readonly faults: readonly Fault[];
}

export interface DrawOptions {
  /** @default 100 */
  readonly requests?: number;
  /** Most faults. @default 6 */
  readonly faults?: number;
  /** Only faults of these kinds. @default all, some more often than others */
  readonly kinds?: readonly FaultKind[];
  /** Requests and faults begin within this. @default 4000 */
  readonly spanMs?: number;
}

/** How often each is drawn, against the others. */
const weights: Readonly<Record<FaultKind, number>> = {
  crash: 4,
  freeze: 3,
  wedge: 2,
  slow: 2,
  partition: 2,
  'clock-jump': 1,
  'broker-restart': 1,
  'broker-crash': 1,
  'disk-full': 1,
  drain: 2,
};
const lots = faultKinds.flatMap((kind) => Array<FaultKind>(weights[kind]).fill(kind));

const quiet: Rates = { drop: 0, duplicate: 0, reorder: 0, delay: 0 };

/** Everything follows from the seed. */
export function drawSchedule(seed: number, options: DrawOptions = {}): Schedule {
  const random = seededRandom(seed * 2 + 1);
  const whole = (from: number, to: number) => from + Math.floor(random() * (to - from + 1));
  const among = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T;
  const spanMs = options.spanMs ?? 4_000;
  const gateways = whole(1, 2);
  const prefill = whole(0, 2);
  const decode = whole(1, 3);
  const calm = random() < 0.25;
  const lossy = !calm && random() < 0.5;
  const rate = () => (lossy && random() < 0.6 ? random() * 0.02 : 0);
  const rates: Rates = lossy ? { drop: rate(), duplicate: rate(), reorder: rate(), delay: rate() } : quiet;
  const flow = random() < 0.35 ? 'decode-first' : 'prefill-first';
  const policy = random() < 0.7 ? 'always' : 'isl_or_load';
  const slots = whole(2, 6);
  const sessions = random() < 0.3;
  const classes = random() < 0.3;
  const queueMs = random() < 0.1 ? whole(200, 2_000) : undefined;
  const totalMs = random() < 0.1 ? whole(500, 5_000) : undefined;
  const names = (role: string, count: number) => Array.from({ length: count }, (_, index) => `${role}-${index}`);
  const workers = [...names('prefill', prefill), ...names('decode', decode)];
  const processes = [...workers, ...names('gateway', gateways)];
  const targets: Readonly<Record<FaultKind, readonly string[]>> = {
    crash: processes,
    freeze: [...processes, 'node'],
    wedge: workers,
    slow: processes,
    partition: processes,
    'clock-jump': processes,
    'broker-restart': [''],
    'broker-crash': [''],
    'disk-full': [''],
    drain: processes,
  };
  const durations: Readonly<Record<FaultKind, readonly [number, number]>> = {
    crash: [0, 0],
    freeze: [200, 8_000],
    wedge: [0, 0],
    slow: [500, 4_000],
    partition: [200, 8_000],
    'clock-jump': [-3_600_000, 3_600_000],
    'broker-restart': [100, 4_000],
    'broker-crash': [100, 4_000],
    'disk-full': [200, 3_000],
    drain: [0, 0],
  };
  const requests = Array.from({ length: options.requests ?? 100 }, (): PlannedRequest => {
    const leaves = random() < 0.2;
    return {
      at: random() * spanMs,
      gateway: whole(0, gateways - 1),
      group: whole(0, 3),
      sharedTokens: whole(0, 3) * 64,
      ownTokens: whole(1, 150),
      // Whoever leaves would have had to wait for long: what goes on without him shows.
      maxTokens: leaves ? whole(25_000, 30_000) : random() < 0.25 ? whole(16, 80) : whole(1, 16),
      n: random() < 0.15 ? whole(2, Math.min(3, slots)) : 1,
      seed: whole(0, 1_000_000),
      // Early as often as late: the first milliseconds have the most states to leave from.
      ...(leaves ? { leavesAfterMs: 800 * 1_000 ** -random() } : {}),
      ...(sessions && random() < 0.7 ? { session: whole(0, 5) } : {}),
      ...(classes && random() < 0.8 ? { class: among(classNames) } : {}),
      ...(random() < 0.1 ? { priority: whole(-2, 5) } : {}),
      ...(random() < 0.05 ? { strictPriority: whole(1, 3) } : {}),
    };
  });
  const faults = Array.from({ length: calm ? 0 : whole(0, options.faults ?? 6) }, (): Fault => {
    const kind = among(options.kinds ?? lots);
    const [least, most] = durations[kind];
    return { at: random() * spanMs, kind, target: among(targets[kind]), forMs: whole(least, most) };
  }).filter(({ target }) => target !== undefined);
  const byTime = (a: { readonly at: number }, b: { readonly at: number }) => a.at - b.at;
  return {
    version: 1,
    seed,
    gateways,
    prefill,
    decode,
    slots,
    flow,
    policy,
    ...(sessions && { sessions }),
    ...(classes && { classes }),
    ...(queueMs !== undefined && { queueMs }),
    ...(totalMs !== undefined && { totalMs }),
    rates,
    requests: requests.sort(byTime),
    faults: faults.sort(byTime),
  };
}

const Rate = Type.Number({ minimum: 0, maximum: 1 });
const Time = Type.Number({ minimum: 0, maximum: 3_600_000 });
const Whole = (minimum: number, maximum: number) => Type.Integer({ minimum, maximum });
const Shape = Compile(
  Type.Object({
    version: Type.Literal(1),
    seed: Whole(0, 2 ** 40),
    gateways: Whole(1, 16),
    prefill: Whole(0, 64),
    decode: Whole(1, 64),
    slots: Whole(1, 256),
    flow: Type.Enum(['prefill-first', 'decode-first']),
    policy: Type.Enum(['always', 'isl_or_load']),
    sessions: Type.Optional(Type.Boolean()),
    classes: Type.Optional(Type.Boolean()),
    queueMs: Type.Optional(Whole(1, 3_600_000)),
    totalMs: Type.Optional(Whole(1, 3_600_000)),
    rates: Type.Object({ drop: Rate, duplicate: Rate, reorder: Rate, delay: Rate }),
    requests: Type.Array(
      Type.Object({
        at: Time,
        gateway: Whole(0, 15),
        group: Whole(0, 1_000),
        sharedTokens: Whole(0, 16_000),
        ownTokens: Whole(1, 16_000),
        maxTokens: Whole(1, 1_000_000),
        n: Whole(1, 16),
        seed: Whole(0, 2 ** 53 - 1),
        leavesAfterMs: Type.Optional(Time),
        session: Type.Optional(Whole(0, 100_000)),
        class: Type.Optional(Type.Enum([...classNames])),
        priority: Type.Optional(Type.Number({ minimum: -1_000, maximum: 1_000 })),
        strictPriority: Type.Optional(Whole(0, 1_000)),
      }),
      { maxItems: 100_000 },
    ),
    faults: Type.Array(
      Type.Object({
        at: Time,
        kind: Type.Enum([...faultKinds]),
        target: Type.String({ maxLength: 64 }),
        forMs: Whole(-(2 ** 40), 2 ** 40),
      }),
      { maxItems: 10_000 },
    ),
  }),
);

/** A schedule from a file's text, or a sentence that says what is wrong with it. */
export function readSchedule(text: string, file: string): Schedule | string {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return `${file} is not JSON: ${(error as Error).message}`;
  }
  const { version } = (value ?? {}) as { version?: unknown };
  if (version !== 1) return `${file} is no schedule of version 1, but ${JSON.stringify(version) ?? 'something else'}`;
  if (Shape.Check(value)) return value as Schedule;
  const [first] = Shape.Errors(value);
  return `${file}: ${first?.instancePath === '' ? 'it' : first?.instancePath} ${first?.message ?? 'is wrong'}`;
}
