/**
 * A restart that is wanted: one process after the other, each drained and replaced while the others serve. Where a process is the only one
 * of its role, a stand-in serves beside it meanwhile, so that the node stays ready.
 */
import { describe, SupervisorError } from './errors.js';
import type { Fleet, Member, Recruit } from './fleet.js';
import type { Role } from './ipc.js';
import type { ChildSpec, Supervisor } from './otp/index.js';

export interface RestartRequest {
  /** Empty: all workers. */
  readonly instances: readonly string[];
  /** The gateways too, after the workers. */
  readonly all: boolean;
  /** Without stand-ins: requests wait for the process that restarts. For machines without room for one more. */
  readonly inPlace: boolean;
}

export interface RestartProgress {
  readonly instance: string;
  readonly step: 'stand-in up' | 'draining' | 'up' | 'stand-in ended';
  /** Of the life that `step` is about. */
  readonly incarnation: string;
  /** Since the step before, in milliseconds. */
  readonly ms: number;
}

export interface RestartSite {
  readonly tree: Supervisor;
  readonly fleet: Fleet;
  recruit(role: Role, index: number): Recruit;
  specOf(member: Member): ChildSpec;
  /** How long a process may take to be up, in milliseconds. */
  readonly startMs: number;
}

/** Rejects with SUP_RESTART at the first process that cannot be replaced. `cancelled`: looked at before each process. */
export async function rollingRestart(
  site: RestartSite,
  request: RestartRequest,
  report: (progress: RestartProgress) => void,
  cancelled: () => boolean,
): Promise<void> {
  let since = performance.now();
  const step = (instance: string, what: RestartProgress['step'], incarnation: string) => {
    const now = performance.now();
    report({ instance, step: what, incarnation, ms: Math.round(now - since) });
    since = now;
  };
  for (const name of chosen(site, request)) {
    if (cancelled()) throw new SupervisorError('SUP_RESTART', [name, 'it was called off']);
    try {
      const member = site.fleet.members.find(({ instance }) => instance === name);
      if (member === undefined) await replace(site.tree, name, step);
      else {
        await peersUp(site, member);
        const alone = !request.inPlace && site.fleet.members.filter(({ role }) => role === member.role).length === 1;
        const work = () => replace(site.tree, name, step);
        await (alone ? besideStandIn(site, member.role, step, work) : work());
      }
    } catch (error) {
      throw error instanceof SupervisorError && error.code === 'SUP_RESTART'
        ? error
        : new SupervisorError('SUP_RESTART', [name, describe(error)], error);
    }
  }
}

type Step = (instance: string, what: RestartProgress['step'], incarnation: string) => void;

function chosen({ tree, fleet }: RestartSite, { instances, all }: RestartRequest): readonly string[] {
  const known = tree.status().map(({ name }) => name);
  for (const name of instances) {
    if (!known.includes(name))
      throw new SupervisorError('SUP_RESTART', [name, `there is no such process; there are ${known.join(', ')}`]);
  }
  if (instances.length > 0) return instances;
  return fleet.members.filter(({ role }) => all || role !== 'gateway').map(({ instance }) => instance);
}

async function replace(tree: Supervisor, name: string, step: Step): Promise<void> {
  const before = tree.status().find((child) => child.name === name)?.incarnation ?? '';
  step(name, 'draining', before);
  const life = await tree.recycleChild(name);
  step(name, 'up', life.incarnation);
}

/** One is taken away only while all others of its role serve. */
async function peersUp({ tree, fleet, startMs }: RestartSite, { role }: Member): Promise<void> {
  const peers = new Set(fleet.members.filter((member) => member.role === role).map(({ instance }) => instance));
  const missing = () => tree.status().find(({ name, state }) => peers.has(name) && state !== 'up');
  if (missing() === undefined) return;
  await new Promise<void>((resolve, reject) => {
    const stopListening = tree.onChange(() => {
      if (missing() === undefined) finish(resolve);
    });
    const late = setTimeout(() => {
      const { name, state } = missing() ?? { name: '', state: 'up' };
      finish(() => reject(new SupervisorError('SUP_RESTART', [name, `it has been ${state} for ${startMs} ms`])));
    }, startMs);
    const finish = (settle: () => void) => {
      clearTimeout(late);
      stopListening();
      settle();
    };
  });
}

async function besideStandIn(site: RestartSite, role: Role, step: Step, work: () => Promise<void>): Promise<void> {
  const { tree, fleet } = site;
  const taken = new Set(fleet.members.map(({ instance }) => instance));
  let index = 0;
  while (taken.has(`${role}-${index}`)) index++;
  const member = fleet.join(site.recruit(role, index));
  try {
    const life = await tree.startChild({ ...site.specOf(member), restart: 'temporary' });
    step(member.instance, 'stand-in up', life.incarnation);
    try {
      await work();
    } finally {
      // It may have ended by itself; then there is nobody to stop.
      await tree.terminateChild(member.instance).catch(() => {});
    }
    step(member.instance, 'stand-in ended', life.incarnation);
  } finally {
    fleet.leave(member.instance);
  }
}
