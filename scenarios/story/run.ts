/** Tells a scenario: carries out its steps one by one, writes down what each did, and ends what it started, whatever happens. */
import { join } from 'node:path';
import { now } from '../driver/clock.js';
import { folderStage, noSmallDisk, ownStage, type Stage, urlStage } from '../driver/stage.js';
import type { Stream } from '../driver/streams.js';
import { ScenarioError } from './errors.js';
import type { Named } from './library.js';
import { type Cast, steps } from './steps.js';
import type { Story } from './story.js';

export interface StepRecord {
  readonly name: string;
  readonly detail: string;
  /** Milliseconds since the scenario began. */
  readonly from: number;
  readonly to: number;
  /** Of the step that failed; '' = it did not. */
  readonly error: string;
}

export interface StreamRecord {
  readonly end: string;
  readonly detail: string;
  readonly sent: number;
  readonly ended: number;
  /** When text arrived. */
  readonly at: readonly number[];
}

export interface Verdict {
  readonly name: string;
  readonly title: string;
  readonly after: string;
  /** refused: a step cannot be done here. */
  readonly verdict: 'passed' | 'failed' | 'refused';
  readonly why: string;
  readonly seed: number;
  readonly ms: number;
  /** File of the tape, or where it is. */
  readonly tape: string;
  readonly steps: readonly StepRecord[];
  readonly streams: readonly StreamRecord[];
}

export interface RunOptions {
  readonly seed: number;
  /** A running node instead of one of its own: its URL, or its state folder. */
  readonly node?: string | undefined;
  /** Folder for the tape. */
  readonly tapes: string;
  /** File that nodes append their logs to. */
  readonly log?: string | undefined;
  readonly progress: (line: string) => void;
  /** Where baselines come from; several scenarios share it. */
  readonly quiet: () => Promise<Stage>;
}

/** Rejects with SCN_NO_STEP for a scenario that asks for a step that there is not. */
export async function runScenario(plot: Named, options: RunOptions): Promise<Verdict> {
  const began = now();
  const since = () => Math.round(now() - began);
  const told: StepRecord[] = [];
  const cast: Cast = {
    seed: options.seed,
    stage: undefined,
    loads: [],
    faultAt: undefined,
    giveBack: undefined,
    later: [],
    open: (settings) => openStage(settings, options),
    quiet: options.quiet,
  };
  let verdict: Verdict['verdict'] = 'passed';
  let why = '';
  try {
    await plot.tell(
      storyOf(plot.file, cast, (name, detail, from, error) => {
        told.push({ name, detail, from: Math.round(from - began), to: since(), error });
        options.progress(
          `  ${String(since()).padStart(6)} ms  ${name} ${detail}${error === '' ? '' : `  FAILED: ${error}`}`,
        );
      }),
    );
    await Promise.all(cast.later);
    if (!told.some(({ name }) => name.startsWith('expect')))
      throw new ScenarioError('SCN_ORDER', [plot.name, 'it expects nothing']);
  } catch (error) {
    if (error instanceof ScenarioError && error.code === 'SCN_NO_STEP') throw error;
    verdict = error instanceof ScenarioError && error.code === 'SCN_REFUSED' ? 'refused' : 'failed';
    why = error instanceof Error ? error.message : String(error);
  } finally {
    await Promise.allSettled(cast.later);
    cast.giveBack?.();
    for (const load of cast.loads)
      for (const { index, end } of load.streams.all) if (end === undefined) load.streams.leave(index);
  }
  const tape = (await cast.stage?.exportTape(join(options.tapes, `${plot.name}.tape`))) ?? 'none: no node was started';
  await cast.stage?.close();
  const { name, title, after } = plot;
  const streams = cast.loads.flatMap((load) => load.streams.all.map((stream) => recordOf(stream, began)));
  return { name, title, after, verdict, why, seed: options.seed, ms: since(), tape, steps: told, streams };
}

const recordOf = ({ end, detail, sentAt, endedAt, at }: Stream, began: number): StreamRecord => ({
  end: end ?? 'open',
  detail,
  sent: Math.round(sentAt - began),
  ended: Math.round(endedAt - began),
  at: at.map((when) => Math.round(when - began)),
});

async function openStage(settings: Parameters<typeof ownStage>[0], { node, log }: RunOptions): Promise<Stage> {
  if (node === undefined) {
    const why = settings.diskMiB === undefined ? '' : noSmallDisk();
    if (why !== '') throw new ScenarioError('SCN_REFUSED', ['startNode', why]);
    return ownStage(settings, log);
  }
  if (settings.diskMiB !== undefined)
    throw new ScenarioError('SCN_REFUSED', ['startNode', 'a node that runs already has no small disk of its own']);
  return /^https?:/.test(node) ? urlStage(node) : folderStage(node);
}

/** A step that there is not is named, and so is the file: in JavaScript nobody else says so. */
function storyOf(
  file: string,
  cast: Cast,
  told: (name: string, detail: string, from: number, error: string) => void,
): Story {
  const known = steps(cast);
  return new Proxy(known, {
    get(target, name) {
      // A story that is returned from an async function is asked for this.
      if (name === 'then' || typeof name === 'symbol') return undefined;
      if (!Object.hasOwn(target, name))
        throw new ScenarioError('SCN_NO_STEP', [file, name, Object.keys(target).join(', ')]);
      const step = target[name as keyof Story] as (...args: unknown[]) => Promise<void>;
      return async (...args: unknown[]) => {
        const from = now();
        const detail = args.map(shown).join(', ');
        try {
          await step(...args);
        } catch (error) {
          told(name, detail, from, error instanceof Error ? error.message : String(error));
          throw error;
        }
        told(name, detail, from, '');
      };
    },
  });
}

function shown(value: unknown): string {
  if (value instanceof RegExp || typeof value === 'string') return String(value);
  return typeof value === 'function' ? '' : JSON.stringify(value);
}
