/**
 * Who is there. Every instance keeps an entry in the REGISTRY bucket under its incarnation and renews it; the lease is for
 * discovery, failure detection is faster (design 8.1).
 */
import { Compile } from 'typebox/compile';
import type { Bus, Stop } from './bus.js';
import { InstanceInfo } from './messages.js';

export interface RegistryOptions {
  /** The bucket's ttl; an entry is renewed three times within it. Default 6,000. */
  readonly leaseMs?: number;
}

export interface Announcement {
  /** Replaces what others see, at once. */
  update(info: InstanceInfo): void;
  /** Removes the entry and stops renewing it. Resolves when the broker knows, or after a second. */
  withdraw(): Promise<void>;
}

export interface InstanceEvent {
  readonly kind: 'added' | 'changed' | 'gone';
  readonly info: InstanceInfo;
}

const defaultLeaseMs = 6_000;
const entryBytes = 64 * 1024;
const check = Compile(InstanceInfo);

function keyOf(info: InstanceInfo): string {
  return `instance.${info.component}.${info.incarnation}`;
}

/** Puts an instance into the registry, keeps it there, and puts it back after the broker was away. */
export function announce(bus: Bus, first: InstanceInfo, options: RegistryOptions = {}): Announcement {
  const everyMs = Math.floor((options.leaseMs ?? defaultLeaseMs) / 3);
  const key = keyOf(first);
  let info = first;
  let value = encode(info);
  let cancel: Stop | undefined;
  let ended = false;

  function put(): void {
    cancel?.();
    if (ended) return;
    cancel = bus.clock.setTimer(everyMs, put);
    // A failed renewal is repeated by the next tick, or by the connection's return.
    if (bus.state === 'up') bus.put(key, value).catch(() => {});
  }
  const stopListening = bus.onState((state) => {
    if (state === 'up') put();
  });
  put();

  return {
    update(next) {
      if (keyOf(next) !== key) throw new TypeError(`an announcement keeps its component and incarnation: ${key}`);
      info = next;
      value = encode(info);
      put();
    },
    async withdraw() {
      if (ended) return;
      ended = true;
      cancel?.();
      stopListening();
      if (bus.state !== 'up') return;
      await new Promise<void>((resolve) => {
        const cancelWait = bus.clock.setTimer(1_000, resolve);
        const done = (): void => {
          cancelWait();
          resolve();
        };
        bus.remove(key).then(done, done);
      });
    },
  };
}

/**
 * Tells of every instance: first those there (then `ready`), then changes. Renewals are silent. A lease that ran out
 * while the broker was away counts only after its owner had one lease's time to renew it. The handler is synchronous; a throw is swallowed
 * and counted.
 */
export async function watchInstances(
  bus: Bus,
  handler: (event: InstanceEvent) => void,
  options: RegistryOptions = {},
): Promise<{
  stop: Stop;
  ready: Promise<void>;
  readonly counters: { readonly malformed: number; readonly failed: number };
}> {
  const leaseMs = options.leaseMs ?? defaultLeaseMs;
  const known = new Map<string, { info: InstanceInfo; text: string }>();
  const doubtful = new Map<string, Stop>();
  const counters = { malformed: 0, failed: 0 };
  let wasDown = bus.state !== 'up';
  let upSince = Number.NEGATIVE_INFINITY;

  function tell(kind: InstanceEvent['kind'], info: InstanceInfo): void {
    try {
      handler({ kind, info });
    } catch {
      counters.failed += 1;
    }
  }
  function gone(key: string): void {
    doubtful.get(key)?.();
    doubtful.delete(key);
    const had = known.get(key);
    if (!had) return;
    known.delete(key);
    tell('gone', had.info);
  }
  function doubt(key: string, graceMs: number): void {
    if (known.has(key) && !doubtful.has(key))
      doubtful.set(
        key,
        bus.clock.setTimer(graceMs, () => gone(key)),
      );
  }
  function here(key: string, value: Uint8Array): void {
    doubtful.get(key)?.();
    doubtful.delete(key);
    const text = Buffer.from(value).toString('utf8');
    const had = known.get(key);
    if (had?.text === text) return;
    const info = decode(value, text);
    if (!info || keyOf(info) !== key) {
      counters.malformed += 1;
      return;
    }
    known.set(key, { info, text });
    tell(had ? 'changed' : 'added', info);
  }

  const stopListening = bus.onState((state) => {
    if (state === 'down') wasDown = true;
    else if (state === 'up' && wasDown) {
      wasDown = false;
      upSince = bus.clock.now();
    }
  });
  const watch = await bus.watch('instance.', (entry) => {
    if (entry.value) return here(entry.key, entry.value);
    const graceMs = wasDown ? leaseMs : upSince + leaseMs - bus.clock.now();
    if (entry.expired && graceMs > 0) doubt(entry.key, graceMs);
    else gone(entry.key);
  });
  return {
    ready: watch.ready,
    counters,
    stop() {
      watch.stop();
      stopListening();
      for (const cancel of doubtful.values()) cancel();
      doubtful.clear();
    },
  };
}

function encode(info: InstanceInfo): Uint8Array {
  return Buffer.from(JSON.stringify(info));
}

function decode(value: Uint8Array, text: string): InstanceInfo | undefined {
  if (value.length > entryBytes) return undefined;
  try {
    const info: unknown = JSON.parse(text);
    return check.Check(info) ? info : undefined;
  } catch {
    return undefined;
  }
}
