/** What each step of a story does. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Fault, NodeStatus } from '../../supervisors/index.js';
import { now } from '../driver/clock.js';
import { poll, signal } from '../driver/node.js';
import { pauseAfter, reasons, settle } from '../driver/outcome.js';
import { ownStage, type Stage, type StageSettings } from '../driver/stage.js';
import { openStreams, type Streams } from '../driver/streams.js';
import { ScenarioError } from './errors.js';
import { bodiesOf, inPhase } from './load.js';
import type { NodeShape, Story } from './story.js';

interface Running {
  readonly streams: Streams;
  readonly bodies: readonly object[];
}

/** What a story knows of its node and its requests. */
export interface Cast {
  readonly seed: number;
  stage: Stage | undefined;
  readonly loads: Running[];
  /** When the first fault came; undefined before. */
  faultAt: number | undefined;
  giveBack: (() => void) | undefined;
  /** Ends of faults that the story does not wait for. */
  readonly later: Promise<unknown>[];
  open(settings: StageSettings): Promise<Stage>;
  /** Of a node where nothing happens. */
  quiet(): Promise<Stage>;
}

const path = '/v1/completions';
const endMs = 60_000;
const upMs = 60_000;
const pollMs = 30_000;

export function steps(cast: Cast): Story {
  const stage = (step: string): Stage => {
    if (cast.stage === undefined) throw new ScenarioError('SCN_ORDER', [step, 'startNode comes first']);
    return cast.stage;
  };
  /** A node whose processes can be seen. */
  const near = (step: string): Stage => {
    const here = stage(step);
    if (here.kind === 'url')
      throw new ScenarioError('SCN_REFUSED', [step, 'it needs the state folder of the node, and there is only a URL']);
    return here;
  };
  const last = (step: string): Running => {
    const load = cast.loads.at(-1);
    if (load === undefined) throw new ScenarioError('SCN_ORDER', [step, 'runLoad comes first']);
    return load;
  };
  const hit = () => {
    cast.faultAt ??= now();
  };
  const pidOf = async (step: string, instance: string): Promise<number> => {
    const { processes } = await near(step).status();
    const found = processes.find((each) => each.instance === instance || (instance === 'node' && each.role === 'node'));
    if (found?.pid == null) throw new Error(`there is no process ${instance}; there are ${names(processes)}`);
    return found.pid;
  };
  const send = async (step: string, instance: string, name: NodeJS.Signals) => {
    if (instance === 'node' && stage(step).kind !== 'own')
      throw new ScenarioError('SCN_REFUSED', [step, 'a scenario ends no node that it has not started']);
    const pid = await pidOf(step, instance);
    hit();
    if (!signal(pid, name)) throw new Error(`${instance} has ended`);
    return pid;
  };
  const inject = async (step: string, instance: string, fault: Fault) => {
    try {
      await near(step).inject(instance, fault);
    } catch (error) {
      if ((error as { code?: string }).code !== 'SUP_FAULT') throw error;
      throw new ScenarioError('SCN_REFUSED', [step, (error as Error).message], error);
    }
    hit();
  };
  const linkFor = async (step: string, instance: string, state: 'held' | 'cut', ms: number) => {
    await inject(step, instance, { kind: 'link', state });
    await sleep(ms);
    await inject(step, instance, { kind: 'link', state: 'open' });
  };
  const ended = async (step: string, ms: number) =>
    (await Promise.all(cast.loads.map(({ streams }) => streams.ended(ms))))
      .flat()
      .filter(() => last(step) !== undefined);
  const opened = (here: Stage, bodies: readonly object[], pauseReadingMs = 0) =>
    openStreams(here.port, path, bodies, { host: here.host, pauseReadingMs });

  return {
    async startNode(shape = {}) {
      if (cast.stage !== undefined) throw new ScenarioError('SCN_ORDER', ['startNode', 'there is a node']);
      cast.stage = await cast.open(settingsOf(shape));
      if (cast.stage.kind !== 'folder') return;
      const { processes } = await cast.stage.status();
      for (const role of ['prefill', 'decode'] as const) {
        const [wanted, are] = [shape[role] ?? 2, processes.filter((each) => each.role === role).length];
        if (are < wanted)
          throw new ScenarioError('SCN_REFUSED', [
            'startNode',
            `the node has ${are} ${role} workers, ${wanted} are wanted`,
          ]);
      }
    },
    async runLoad(load = {}) {
      const here = stage('runLoad');
      const bodies = bodiesOf(load, here.model, cast.seed + cast.loads.length);
      cast.loads.push({ bodies, streams: opened(here, bodies, load.pauseReadingMs) });
    },
    async until(phase) {
      const { streams } = last('until');
      if (!(await streams.reached((all) => inPhase(phase, all))))
        throw new Error(`the requests ended before they were ${phase}: ${JSON.stringify(reasons(streams.all))}`);
    },
    async kill(instance) {
      await send('kill', instance, 'SIGKILL');
    },
    async terminate(instance) {
      await send('terminate', instance, 'SIGTERM');
    },
    async freeze(instance, ms) {
      const pid = await send('freeze', instance, 'SIGSTOP');
      await poll(ms, () => (signal(pid, 0) ? undefined : true));
      signal(pid, 'SIGCONT');
    },
    async restartNats() {
      const before = await send('restartNats', 'nats', 'SIGKILL');
      const up = await poll(upMs, async () => {
        const { processes } = await near('restartNats').status();
        const nats = processes.find(({ role }) => role === 'nats');
        return nats?.state === 'up' && nats.pid !== before ? true : undefined;
      });
      if (up === undefined) throw new Error(`the broker is not up again after ${upMs} ms`);
    },
    partition: (instance, ms) => linkFor('partition', instance, 'held', ms),
    cutLink: (instance, ms) => linkFor('cutLink', instance, 'cut', ms),
    slowLink: (instance, delayMs) =>
      inject('slowLink', instance, { kind: 'link', state: delayMs === 0 ? 'open' : 'slow', delayMs }),
    corruptKvBlock: (instance) => inject('corruptKvBlock', instance, { kind: 'corrupt' }),
    skewClock: (instance, offsetMs) => inject('skewClock', instance, { kind: 'clock', offsetMs }),
    throwIn: (instance, actor) => inject('throwIn', instance, { kind: 'throw', actor }),
    hang: (instance, actor) => inject('hang', instance, { kind: 'hang', actor }),
    wedge: (instance) => inject('wedge', instance, { kind: 'wedge' }),
    async fillDisk() {
      if (stage('fillDisk').kind !== 'own')
        throw new ScenarioError('SCN_REFUSED', [
          'fillDisk',
          'only the disk of a node that the scenario starts is filled',
        ]);
      cast.giveBack = stage('fillDisk').fill();
      hit();
    },
    async freeDisk() {
      cast.giveBack?.();
      cast.giveBack = undefined;
    },
    async leave(clients) {
      const { streams } = last('leave');
      for (const { index } of streams.all.filter(({ end }) => end === undefined).slice(0, clients))
        streams.leave(index);
    },
    async rollingRestart() {
      hit();
      await near('rollingRestart').restart();
    },
    wait: (ms) => sleep(ms),

    async expectAllComplete(withinMs = endMs) {
      const all = (await ended('expectAllComplete', withinMs)).filter(({ end }) => end !== 'left');
      const failed = all.filter(({ end }) => end !== 'complete');
      if (failed.length > 0)
        throw new Error(`${failed.length} of ${all.length} are not complete: ${JSON.stringify(reasons(failed))}`);
    },
    async expectAllEnd(codes, withinMs = endMs) {
      const all = await ended('expectAllEnd', withinMs);
      const bad = all.filter(
        ({ end, detail }) => end !== 'complete' && end !== 'left' && !codes.test(detail || String(end)),
      );
      if (bad.length > 0)
        throw new Error(`${bad.length} of ${all.length} end otherwise: ${JSON.stringify(reasons(bad))}`);
    },
    async expectRefused(codes, least) {
      const refused = last('expectRefused').streams.all.filter(({ detail }) => codes.test(detail));
      if (refused.length < least) throw new Error(`${refused.length} were refused, at least ${least} are wanted`);
    },
    async expectTextEqualsBaseline() {
      const here = stage('expectTextEqualsBaseline');
      // A node of ours computes anew what may have been damaged here; any other engine is only to be had on the node itself.
      const quiet = here.kind === 'own' ? await cast.quiet() : here;
      for (const { bodies, streams } of cast.loads) {
        const texts = (await opened(quiet, bodies).ended(endMs)).map(({ text }) => text);
        const other = streams.all.filter(({ end, text, index }) => end === 'complete' && text !== texts[index]);
        if (other.length > 0) throw new Error(`${other.length} of ${texts.length} have another text`);
        if (new Set(texts).size < texts.length) throw new Error('two requests have the same text: it says nothing');
      }
    },
    async expectNoLeak() {
      const left = await settle(near('expectNoLeak'));
      if (left.length > 0) throw new Error(`still held: ${left.join(', ')}`);
    },
    async expectPauseUnder(ms) {
      const pause = pauseAfter(
        cast.loads.flatMap(({ streams }) => streams.all).filter(({ end }) => end === 'complete'),
        cast.faultAt ?? 0,
      );
      if (pause > ms) throw new Error(`an answer stood still for ${Math.round(pause)} ms`);
    },
    async expectRestarts(instance, least) {
      let seen = 0;
      const done = await poll(pollMs, async () => {
        const { processes } = await near('expectRestarts').status();
        const found = processes.find((each) => each.instance === instance);
        seen = found?.restarts ?? 0;
        return seen >= least && found?.state === 'up' ? true : undefined;
      });
      if (done === undefined) throw new Error(`${instance} was started anew ${seen} times`);
    },
    async expectSpread(role, share) {
      const { streams } = last('expectSpread');
      const { processes } = await near('expectSpread').status();
      const counts = processes.filter((each) => each.role === role).map(({ facts }) => Number(facts.inFlight ?? 0));
      const all = counts.reduce((sum, count) => sum + count, 0);
      if (all < streams.all.length / 4)
        throw new Error(`only ${all} requests are with ${role} workers: too few to tell`);
      if (Math.max(...counts) > all * share) throw new Error(`${role} workers have ${counts.join(', ')} requests`);
    },
    async expectServes() {
      const here = stage('expectServes');
      const bodies = bodiesOf({ streams: 8, tokens: 8 }, here.model, cast.seed + 7);
      const all = await opened(here, bodies).ended(endMs);
      if (all.some(({ end }) => end !== 'complete'))
        throw new Error(`new requests end otherwise: ${JSON.stringify(reasons(all))}`);
    },
    async expectStatus(what, test) {
      const done = await poll(pollMs, async () => (test(await near('expectStatus').status()) ? true : undefined));
      if (done === undefined) throw new Error(`not seen: ${what}`);
    },
  };
}

/** The node that baselines come from: started when the first is asked for, and kept for the next story. */
export function quietNode() {
  let stage: Promise<Stage> | undefined;
  return {
    stage: () => {
      stage ??= ownStage(settingsOf({ prefill: 1, decode: 1, stepMs: 1 }));
      return stage;
    },
    close: async () => (await stage?.catch(() => undefined))?.close(),
  };
}

const names = (processes: NodeStatus['processes']) => processes.map(({ instance }) => instance).join(', ');

function settingsOf(shape: NodeShape): StageSettings {
  const {
    prefill = 2,
    decode = 2,
    gateways = 1,
    slots,
    stepMs = 8,
    links = false,
    diskMiB,
    env = {},
    flags = [],
  } = shape;
  const counts = ['--prefill', String(prefill), '--decode', String(decode), '--gateway', String(gateways)];
  return {
    flags: [
      ...['--engine', 'mock', '--model', 'mock', '--log-level', 'warn'],
      ...counts,
      ...(slots === undefined ? [] : ['--slots', String(slots)]),
      ...flags,
    ],
    env: {
      ...(stepMs === 0 ? {} : { DYNACT_MOCK_STEP_MS: String(stepMs) }),
      ...(slots === undefined ? {} : { DYNACT_ENGINE_PREFILL_SLOTS: String(slots) }),
      ...(links ? { DYNACT_FAULTS_LINKS: 'true' } : {}),
      ...env,
    },
    diskMiB,
  };
}
