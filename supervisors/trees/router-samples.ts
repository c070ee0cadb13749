/** What a router knows and how well, as metrics. */
import type { RouterFacts } from '../../actors/index.js';
import type { KvViewFacts } from './kv-views.js';

type Row = readonly [kind: 'counter' | 'gauge', name: string, help: string, value: number | undefined];

export function routerSamples(routing: RouterFacts | undefined, views: KvViewFacts | undefined) {
  const { index, hits } = routing ?? {};
  const rows: readonly Row[] = [
    ['gauge', 'kv_index_nodes', 'KV blocks that any worker is known to hold.', index?.nodes],
    ['gauge', 'kv_index_holders', 'Pairs of a KV block and a worker that holds it.', index?.holders],
    ['gauge', 'kv_index_bytes', 'Memory of the KV index.', index?.bytes],
    ['counter', 'kv_index_evicted_total', 'KV blocks forgotten to stay within the bound.', index?.evicted],
    ['counter', 'kv_index_refused_total', 'Pairs not recorded for want of memory.', index?.refused],
    ['counter', 'kv_batches_total', 'Reports of workers taken in.', views?.batches],
    ['counter', 'kv_snapshots_total', 'Snapshots of workers taken in.', views?.snapshots],
    ['counter', 'kv_gaps_total', 'Holes in the reports of workers, each mended by a snapshot.', views?.gaps],
    ['counter', 'kv_faults_total', 'Reports of workers that were refused.', views?.faults],
    ['gauge', 'kv_quarantined', 'Worker ranks whose reports are refused: an alarm.', views?.quarantined],
    ['counter', 'prompt_tokens_total', 'Prompt tokens of attempts that gave a first token.', hits?.prompt],
    ['counter', 'cached_tokens_expected_total', 'Of those, tokens expected to be cached.', hits?.expected],
    ['counter', 'cached_tokens_total', 'Of those, tokens that were cached.', hits?.cached],
    ['counter', 'cached_tokens_missed_total', 'Tokens expected to be cached that were not.', hits?.missed],
    ['counter', 'cached_tokens_unforeseen_total', 'Tokens cached that were not expected to be.', hits?.unforeseen],
  ];
  return rows.map(([kind, name, help, value]) => ({ kind, name: `dynact_router_${name}`, help, value: value ?? 0 }));
}
