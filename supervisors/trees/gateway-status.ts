/** What a gateway says of itself and of what it sees: ready or why not, metrics, and for people who gets no requests. */
import type { FrontendFacts, RouterFacts } from '../../actors/index.js';
import type { Body, InstanceInfo } from '../../transport/index.js';
import type { KvViewFacts } from './kv-views.js';

/** What has been heard so far; undefined: nothing yet. */
export interface GatewayView {
  readonly model: string;
  readonly brokerUp: boolean;
  readonly instances: readonly InstanceInfo[];
  /** By incarnation. */
  readonly loads: ReadonlyMap<string, Body<'Load'>>;
  readonly frontend: FrontendFacts | undefined;
  readonly router: RouterFacts | undefined;
  readonly kv: KvViewFacts | undefined;
}

type Row = readonly [kind: 'counter' | 'gauge', name: string, help: string, value: number | undefined];

const sample = ([kind, name, help, value]: Row) => ({ kind, name: `dynact_${name}`, help, value: value ?? 0 });

export function gatewayStatus(view: GatewayView) {
  const { model, brokerUp, instances } = view;
  const serves = instances.some((info) => info.component === 'decode' && info.model === model && !info.draining);
  const reason = brokerUp ? (serves ? '' : 'no decode worker') : 'the message broker is away';
  const samples = [
    ...frontendRows(view).map(sample),
    ...routerRows(view).map(sample),
    ...replicaRows(view).map(sample),
    ...queueSamples(view),
    ...inhibitedSamples(view),
    ...workerSamples(view),
  ];
  return { ready: reason === '', reason, instances, samples };
}

function frontendRows({ frontend }: GatewayView): readonly Row[] {
  const poisoned = 'Prompts kept out because workers died of them: an alarm.';
  const stale = 'Messages of older attempts or ended requests, dropped.';
  return [
    ['gauge', 'frontend_leaked', 'Requests neither ended nor in flight: an alarm.', frontend?.leaked],
    ['counter', 'frontend_requests_ended_total', 'Requests ended, in whatever way.', frontend?.ended],
    ['gauge', 'frontend_requests_in_flight', 'Requests between accept and end.', frontend?.inFlight],
    ['counter', 'frontend_requests_accepted_total', 'Requests accepted.', frontend?.accepted],
    ['counter', 'frontend_migrations_total', 'Attempts that were lost and tried again.', frontend?.migrations],
    ['gauge', 'frontend_poison_prompts', poisoned, frontend?.poisoned],
    ['counter', 'frontend_stale_messages_total', stale, frontend?.stale],
    [
      'counter',
      'frontend_token_conflicts_total',
      'Two different tokens at one position: an alarm.',
      frontend?.conflicts,
    ],
  ];
}

function routerRows({ router, kv: views }: GatewayView): readonly Row[] {
  const { index, hits } = router ?? {};
  const inhibitions = 'How often a worker or a pair was put out of routing.';
  return [
    ['gauge', 'router_requests_queued', 'Requests that wait for a worker.', router?.queued],
    ['counter', 'router_inhibitions_total', inhibitions, router?.inhibitions],
    ['gauge', 'router_kv_index_nodes', 'KV blocks that any worker is known to hold.', index?.nodes],
    ['gauge', 'router_kv_index_holders', 'Pairs of a KV block and a worker that holds it.', index?.holders],
    ['gauge', 'router_kv_index_bytes', 'Memory of the KV index.', index?.bytes],
    ['counter', 'router_kv_index_evicted_total', 'KV blocks forgotten to stay within the bound.', index?.evicted],
    ['counter', 'router_kv_index_refused_total', 'Pairs not recorded for want of memory.', index?.refused],
    ['counter', 'router_kv_batches_total', 'Reports of workers taken in.', views?.batches],
    ['counter', 'router_kv_snapshots_total', 'Snapshots of workers taken in.', views?.snapshots],
    ['counter', 'router_kv_gaps_total', 'Holes in the reports of workers, each mended by a snapshot.', views?.gaps],
    ['counter', 'router_kv_faults_total', 'Reports of workers that were refused.', views?.faults],
    ['gauge', 'router_kv_quarantined', 'Worker ranks whose reports are refused: an alarm.', views?.quarantined],
    ['counter', 'router_prompt_tokens_total', 'Prompt tokens of attempts that gave a first token.', hits?.prompt],
    ['counter', 'router_cached_tokens_expected_total', 'Of those, tokens expected to be cached.', hits?.expected],
    ['counter', 'router_cached_tokens_total', 'Of those, tokens that were cached.', hits?.cached],
    ['counter', 'router_cached_tokens_missed_total', 'Tokens expected to be cached that were not.', hits?.missed],
    [
      'counter',
      'router_cached_tokens_unforeseen_total',
      'Tokens cached that were not expected to be.',
      hits?.unforeseen,
    ],
  ];
}

function replicaRows({ router }: GatewayView): readonly Row[] {
  const peers = router?.replicas;
  return [
    ['gauge', 'router_peers', 'Other gateways that the router knows of.', peers?.peers],
    ['gauge', 'router_peers_out_of_step', 'Of those, whose dispatches it does not know exactly.', peers?.outOfStep],
    ['gauge', 'router_peer_requests', 'Requests that other gateways have placed.', peers?.requests],
    ['counter', 'router_peer_frames_total', 'What other routers have told.', peers?.frames],
    ['counter', 'router_peer_snapshots_total', 'Whole accounts of other routers taken in.', peers?.snapshots],
    ['counter', 'router_peer_gaps_total', 'Holes in it, each mended by a snapshot.', peers?.gaps],
    ['counter', 'router_peer_stale_total', 'Frames that came twice or late.', peers?.stale],
    ['counter', 'router_peer_strangers_total', 'Frames of routers that the registry does not know.', peers?.strangers],
    ['counter', 'router_peer_refused_total', 'Requests of theirs that could not be counted.', peers?.refused],
    ['counter', 'router_gave_way_total', 'Free slots left to a request of another gateway.', peers?.gaveWay],
  ];
}

function queueSamples({ router }: GatewayView) {
  if (router === undefined) return [];
  const { waiting, refused, sessions, busy } = router;
  return [
    ...waiting.map((each) => ({
      kind: 'gauge' as const,
      name: 'dynact_router_class_requests_queued',
      help: 'Requests that wait for a worker, by policy class; again: those that are tried again.',
      labels: { class: each.class },
      value: each.waiting,
    })),
    ...Object.entries(refused).map(([reason, value]) => ({
      kind: 'counter' as const,
      name: 'dynact_router_refused_total',
      help: 'Requests that were refused a place.',
      labels: { reason: reason.toLowerCase() },
      value,
    })),
    ...(['new', 'kept', 'moved'] as const).map((outcome) => ({
      kind: 'counter' as const,
      name: 'dynact_router_session_requests_total',
      help: 'Requests of sessions: the first, those served where the one before was, and those that could not be.',
      labels: { outcome },
      value: sessions[outcome],
    })),
    sample(['gauge', 'router_sessions', 'Sessions that are remembered.', sessions.size]),
    sample(['gauge', 'router_workers_busy', 'Workers that get no new requests.', busy.length]),
  ];
}

function inhibitedSamples({ router }: GatewayView) {
  const out: { incarnation: string; prefill?: string | undefined; reason: string }[] = [...(router?.inhibited ?? [])];
  // Who is suspect stays out for longer than a time out: until it answers.
  for (const each of router?.suspects ?? []) {
    if (!out.some(({ incarnation, prefill }) => prefill === undefined && incarnation === each.incarnation))
      out.push(each);
  }
  return out.map(({ incarnation, prefill, reason }) => ({
    kind: 'gauge' as const,
    name: 'dynact_router_inhibited',
    help: 'Workers, or pairs if prefill is set, that get no requests at the moment.',
    labels: { worker: incarnation, prefill: prefill ?? '', reason },
    value: 1,
  }));
}

function workerSamples({ instances, loads }: GatewayView) {
  return instances.flatMap(({ incarnation, instance, component }) => {
    const load = loads.get(incarnation);
    // A gateway's beat is its own test of the broker.
    if (load === undefined || component === 'gateway') return [];
    const labels = { component, instance, worker: incarnation };
    const rows: readonly Row[] = [
      ['gauge', 'worker_requests_in_flight', 'Requests that a worker holds.', load.jobs],
      ['gauge', 'worker_busy_slots', 'Slots of a worker in use.', load.busySlots],
      ['gauge', 'worker_leaked', 'Requests, slots and blocks that nobody owns: an alarm.', load.leaked],
    ];
    return rows.map((row) => ({ ...sample(row), labels }));
  });
}

/** For people: who gets no requests at the moment, why, and for how much longer. */
export function keptOut(routing: RouterFacts | undefined): { readonly inhibited?: string } {
  if (routing === undefined) return {};
  const suspects = new Map(routing.suspects.map(({ incarnation, reason }) => [incarnation, reason]));
  const out = routing.inhibited.map(({ incarnation, prefill, remainingMs, reason, times }) => {
    const name = prefill === undefined ? incarnation : `${prefill} with ${incarnation}`;
    const suspect = prefill === undefined && suspects.delete(incarnation);
    const until = suspect ? 'until it answers' : `for ${Math.ceil(remainingMs / 1_000)} s`;
    return `${name} (${reason}, ${until}, ${times}x)`;
  });
  for (const [incarnation, reason] of suspects) {
    // What a card says is for the life of its worker.
    out.push(`${incarnation} (${reason}${reason === 'WRONG_CARD' ? '' : ', until it answers'})`);
  }
  return out.length === 0 ? {} : { inhibited: out.join('; ') };
}
