/**
 * Settings that are changed while everything runs: each an entry of the REGISTRY bucket without a lease, told to whoever watches. What
 * is configured holds where there is none.
 */
import type { Bus, KvEntry, Stop } from './bus.js';

const prefix = 'setting.';
/** A setting is a number, a name or a switch. */
const mostBytes = 4_096;

/** Rejects as `Bus.put` does. */
export async function putSetting(bus: Bus, key: string, value: unknown): Promise<void> {
  await bus.put(prefix + key, Buffer.from(JSON.stringify(value)), { lasting: true });
}

/** What is configured holds again. */
export async function dropSetting(bus: Bus, key: string): Promise<void> {
  await bus.remove(prefix + key);
}

/**
 * Tells of every setting, undefined for one that was dropped. One that was lost with the broker's store was not dropped: it holds on,
 * and with `keep` it is put back. What cannot be read is ignored and counted.
 */
export async function watchSettings(
  bus: Bus,
  handler: (key: string, value: unknown) => void,
  { keep = false } = {},
): Promise<{ readonly stop: Stop; readonly ready: Promise<void>; readonly counters: { readonly malformed: number } }> {
  const known = new Map<string, Uint8Array>();
  const counters = { malformed: 0 };

  function changed({ key, value, expired }: KvEntry): void {
    const name = key.slice(prefix.length);
    if (value !== undefined) {
      const parsed = parse(value);
      if (parsed === undefined) {
        counters.malformed += 1;
        return;
      }
      known.set(key, value);
      handler(name, parsed.value);
      return;
    }
    const lost = known.get(key);
    if (expired !== true) {
      known.delete(key);
      handler(name, undefined);
    } else if (keep && lost !== undefined) bus.put(key, lost, { lasting: true }).catch(() => {});
  }

  const { stop, ready } = await bus.watch(prefix, changed);
  return { stop, ready, counters };
}

function parse(bytes: Uint8Array): { readonly value: unknown } | undefined {
  if (bytes.length > mostBytes) return undefined;
  try {
    return { value: JSON.parse(Buffer.from(bytes).toString('utf8')) };
  } catch {
    return undefined;
  }
}
