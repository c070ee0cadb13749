/** What of the router can be set while it runs, and what follows from it for a worker. Pure. */
import type { InstanceInfo } from '../../transport/index.js';
import type { RouteRequest, Worker } from './choose.js';
import type { ActiveLoad, Ledger } from './ledger.js';

/** From when on a worker gets no new requests, though it has room; Dynamo's names and meaning. Undefined: that threshold is off. */
export interface BusyThresholds {
  /** Share of a decode worker's KV blocks that its running requests hold, 0 to 1. */
  readonly activeDecodeBlocksThreshold?: number | undefined;
  /** Prompt tokens that a worker was given and has not computed. */
  readonly activePrefillTokensThreshold?: number | undefined;
  /** The same, as a multiple of what it computes in one batch. */
  readonly activePrefillTokensThresholdFrac?: number | undefined;
}

export interface RouterTuning extends BusyThresholds {
  /** Most requests that a worker is given at a time, choices counted; 0 or more than its slots: as many as it has slots. */
  readonly requestLimit: number;
}

const bounds: Readonly<Record<keyof RouterTuning, { readonly most: number; readonly whole: boolean }>> = {
  activeDecodeBlocksThreshold: { most: 1, whole: false },
  activePrefillTokensThreshold: { most: Number.MAX_SAFE_INTEGER, whole: true },
  activePrefillTokensThresholdFrac: { most: 1e6, whole: false },
  requestLimit: { most: 1_000_000, whole: true },
};

/** Throws RangeError, which names the setting, for one that is out of range. */
export function routerTuning(given: RouterTuning): RouterTuning {
  for (const [key, { most, whole }] of Object.entries(bounds)) {
    const value = given[key as keyof RouterTuning];
    if (value === undefined) continue;
    if (!(value >= 0 && value <= most && (!whole || Number.isSafeInteger(value))))
      throw new RangeError(`${key} is ${value}: ${whole ? 'an integer' : 'a number'} from 0 to ${most} is wanted`);
  }
  return given;
}

/** Requests it may hold as far as the router is concerned: one grant more than P has slots, so that the next prompt is at hand (design 5.3). */
export function capacityOf({ component, slots = 1 }: InstanceInfo, { requestLimit }: RouterTuning): number {
  const own = slots + (component === 'prefill' ? 1 : 0);
  return requestLimit === 0 ? own : Math.min(own, requestLimit);
}

export function isBusy(info: InstanceInfo, load: ActiveLoad, thresholds: BusyThresholds): boolean {
  const { kvBlocks, batchTokens } = info;
  const {
    activeDecodeBlocksThreshold: blocks,
    activePrefillTokensThreshold: tokens,
    activePrefillTokensThresholdFrac: frac,
  } = thresholds;
  const holdsMuch =
    info.component === 'decode' && blocks !== undefined && kvBlocks !== undefined && load.blocks > blocks * kvBlocks;
  return (
    holdsMuch ||
    (tokens !== undefined && load.prefillTokens > tokens) ||
    (frac !== undefined && batchTokens !== undefined && load.prefillTokens > frac * batchTokens)
  );
}

const isOff = (thresholds: BusyThresholds) =>
  thresholds.activeDecodeBlocksThreshold === undefined &&
  thresholds.activePrefillTokensThreshold === undefined &&
  thresholds.activePrefillTokensThresholdFrac === undefined;

/**
 * In one of the pools there are workers that could serve it, and all of those are busy. `onlyRemote`: D computes no prompts while there are
 * prefill workers.
 */
export function allBusy(
  workers: ReadonlyMap<string, Worker>,
  ledger: Ledger,
  { model, wishes }: RouteRequest,
  thresholds: BusyThresholds,
  onlyRemote: boolean,
): boolean {
  if (isOff(thresholds)) return false;
  const { pin, allowed } = wishes ?? {};
  const could = { decode: 0, prefill: 0 };
  const idle = { decode: 0, prefill: 0 };
  for (const [incarnation, { info, suspect }] of workers) {
    const { component } = info;
    if (component === 'gateway' || info.model !== model || info.draining || suspect !== undefined) continue;
    const pinned = pin?.[component];
    if (pinned !== undefined ? pinned !== incarnation : allowed?.has(incarnation) === false) continue;
    could[component]++;
    if (!isBusy(info, ledger.load(incarnation), thresholds)) idle[component]++;
  }
  return (could.decode > 0 && idle.decode === 0) || (onlyRemote && could.prefill > 0 && idle.prefill === 0);
}

export function busyWorkers({
  workers,
  ledger,
  tuning,
}: {
  readonly workers: ReadonlyMap<string, Worker>;
  readonly ledger: Ledger;
  readonly tuning: BusyThresholds;
}): string[] {
  if (isOff(tuning)) return [];
  return [...workers.values()]
    .filter(({ info }) => isBusy(info, ledger.load(info.incarnation), tuning))
    .map(({ info }) => info.incarnation);
}
