/** What the configuration says of a router, in the router's own words. There, 0 is how a threshold is off. */
import {
  type DisaggRouting,
  disaggRouting,
  oneClass,
  type QueueConfig,
  queueConfig,
  type RouterConfig,
  type RouterTuning,
} from '../../actors/index.js';
import type { BusyThresholdValues } from '../../gateway/index.js';
import type { ResolvedConfig } from '../config-schema.js';
import type { LiveConfig } from '../live-settings.js';

type Routing = ResolvedConfig['routing'];

const unlessOff = (value: number) => (value === 0 ? undefined : value);

/** Throws RangeError for classes that cannot work together, e.g. two of one name. */
export function queueOf({ classes, queueLength, queuePolicy, ...of }: Routing): QueueConfig {
  const { decodeQueueLength, prefillQueueLength } = of;
  const pools = {
    ...(decodeQueueLength === 0 ? {} : { decode: decodeQueueLength }),
    ...(prefillQueueLength === 0 ? {} : { prefill: prefillQueueLength }),
  };
  if (classes.length === 0) return { ...oneClass(queueLength, queuePolicy), pools };
  const named = classes.map((each) => ({ ...each, policy: each.policy ?? queuePolicy, quantum: each.quantum ?? 1 }));
  return queueConfig({ classes: named as QueueConfig['classes'], limit: queueLength, pools });
}

export function tuningOf(routing: Routing): RouterTuning {
  return {
    requestLimit: routing.requestLimit,
    activeDecodeBlocksThreshold: unlessOff(routing.activeDecodeBlocksThreshold),
    activePrefillTokensThreshold: unlessOff(routing.activePrefillTokensThreshold),
    activePrefillTokensThresholdFrac: unlessOff(routing.activePrefillTokensThresholdFrac),
  };
}

export const sessionsOf = ({ sessionTtlMs, sessionLimit }: Routing): Pick<RouterConfig, 'sessions'> =>
  sessionTtlMs === 0 ? {} : { sessions: { ttlMs: sessionTtlMs, limit: sessionLimit } };

export function disaggOf({ flow, policy, ...of }: ResolvedConfig['disagg']): DisaggRouting {
  return disaggRouting({
    flow,
    policy,
    maxLocalTokens: of.maxLocalTokens,
    maxLocalShare: of.maxLocalShare,
    decodeBusyShare: unlessOff(of.decodeBusyShare),
    prefillBusy: { tokens: unlessOff(of.prefillBusyTokens), share: unlessOff(of.prefillBusyShare) },
  });
}

const busySettings = {
  decodeBlocks: 'activeDecodeBlocksThreshold',
  prefillTokens: 'activePrefillTokensThreshold',
  prefillTokensFrac: 'activePrefillTokensThresholdFrac',
} as const;

export function busyThresholds({ routing }: LiveConfig): BusyThresholdValues {
  const value = (key: keyof typeof busySettings) => unlessOff(routing[busySettings[key]]);
  return {
    decodeBlocks: value('decodeBlocks'),
    prefillTokens: value('prefillTokens'),
    prefillTokensFrac: value('prefillTokensFrac'),
  };
}

/** As settings by key. */
export function busyThresholdSettings(values: Partial<BusyThresholdValues>): ReadonlyMap<string, number> {
  return new Map(
    Object.entries(values).map(([key, value]) => [
      `routing.${busySettings[key as keyof typeof busySettings]}`,
      value ?? 0,
    ]),
  );
}
