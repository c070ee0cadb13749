/**
 * One life of a supervisor: from the start of its first child to the end of its last.
 *
 *     starting ──▶ up ──▶ stopping ──▶ ended
 *         └── a first start fails ──▶ stopping
 */
import type { ExitReason } from '../../actors/index.js';
import type { ChildSpec, ChildStatus, Running } from './child.js';
import { admit, delayMs, endsSupervisor, failuresInARow, plan, restarted } from './decisions.js';
import { asError, SupervisionError } from './errors.js';
import { type ResolvedOptions, resolveSpec } from './options.js';
import { Repair, type RepairHost } from './repair.js';
import { Slot, type SlotHost } from './slot.js';

export class Life implements Running, RepairHost, SlotHost {
  readonly exit: Promise<ExitReason>;
  /** In start order. */
  private slots: Slot[] = [];
  private phase: 'starting' | 'up' | 'stopping' | 'ended' = 'starting';
  private restarts: readonly number[] = [];
  private readonly repairs = new Map<Slot, Repair>();
  private readonly groupRepair = new Repair(this, () => this.siblings);
  /** Ends that came before all siblings were started; they are dealt with afterwards. */
  private early: { readonly slot: Slot; readonly reason: ExitReason; readonly livedMs: number }[] = [];
  private reason: ExitReason = { kind: 'shutdown' };
  private impatient = false;
  private cancelDeadlines: (() => void)[] = [];
  private resolveExit: (reason: ExitReason) => void = () => {};

  constructor(
    private readonly options: ResolvedOptions,
    readonly incarnation: string,
    readonly changed: (status: ChildStatus) => void,
  ) {
    this.exit = new Promise((resolve) => {
      this.resolveExit = resolve;
    });
    this.slots = options.children.map((spec) => new Slot(spec, this));
  }

  get clock() {
    return this.options.clock;
  }

  get graceMs(): number {
    return this.options.graceMs;
  }

  get over(): boolean {
    return this.phase === 'stopping' || this.phase === 'ended';
  }

  get children(): readonly ChildStatus[] {
    return this.slots.map((slot) => slot.status);
  }

  now(): number {
    return this.clock.now();
  }

  setTimer(ms: number, fire: () => void): () => void {
    return this.clock.setTimer(ms, fire);
  }

  /** Starts the children left to right. If one fails, those started are stopped right to left, and it rejects. */
  async begin(abort: AbortSignal): Promise<void> {
    const onAbort = (): void => this.finish({ kind: 'shutdown' });
    abort.addEventListener('abort', onAbort, { once: true });
    if (abort.aborted) onAbort();
    let cause: Error | undefined;
    let culprit = '';
    for (const slot of this.slots) {
      if (this.over) break;
      const outcome = await slot.start();
      if (outcome.kind === 'failed' || outcome.kind === 'hung') {
        slot.enter('down');
        culprit = slot.spec.name;
        cause = outcome.error;
        break;
      }
    }
    abort.removeEventListener('abort', onAbort);
    const { name } = this.options;
    if (cause !== undefined) {
      const error = new SupervisionError('SUP_CHILD_START', [name, culprit], { cause });
      this.finish({ kind: 'error', error });
      await this.exit;
      throw error;
    }
    if (this.over) {
      await this.exit;
      throw new SupervisionError('SUP_ABORTED', [name]);
    }
    this.phase = 'up';
    const { early } = this;
    this.early = [];
    for (const { slot, reason, livedMs } of early) this.ownEnd(slot, reason, livedMs);
  }

  stop(deadlineMs: number): Promise<ExitReason> {
    this.finish({ kind: 'shutdown' });
    if (deadlineMs !== Number.POSITIVE_INFINITY && this.phase !== 'ended') {
      this.cancelDeadlines.push(this.setTimer(deadlineMs, () => this.kill()));
    }
    return this.exit;
  }

  kill(): void {
    if (this.phase === 'ended' || this.impatient) return;
    this.impatient = true;
    this.reason = { kind: 'killed' };
    this.finish(this.reason);
    for (const slot of [...this.slots].reverse()) slot.kill();
  }

  async startChild(given: ChildSpec): Promise<Running> {
    const { name, autoShutdown, maxChildren, backoff } = this.options;
    const spec = resolveSpec(given, name, autoShutdown, backoff.quietMs);
    await this.groupRepair.settled();
    this.mustBeUp();
    const twin = this.slots.find((slot) => slot.spec.name === spec.name);
    if (twin !== undefined) throw new SupervisionError('SUP_CHILD_EXISTS', [name, spec.name, twin.status.state]);
    if (this.slots.length >= maxChildren) throw new SupervisionError('SUP_TOO_MANY_CHILDREN', [name, maxChildren]);
    const slot = new Slot(spec, this);
    this.slots.push(slot);
    return this.visit(slot, () => this.forget(slot));
  }

  async terminateChild(child: string): Promise<void> {
    const slot = this.find(child);
    slot.wanted = false;
    this.repairs.get(slot)?.interrupt();
    const stuck = await slot.end();
    if (stuck !== undefined) this.giveUp(stuck);
    if (this.over) return;
    slot.enter('down');
    if (slot.spec.restart === 'temporary' || this.options.strategy === 'dynamic') this.forget(slot);
  }

  async restartChild(child: string): Promise<Running> {
    await this.groupRepair.settled();
    this.mustBeUp();
    const slot = this.find(child);
    const { state } = slot.status;
    if (state !== 'down') throw new SupervisionError('SUP_CHILD_EXISTS', [this.options.name, child, state]);
    slot.wanted = true;
    return this.visit(slot, () => slot.enter('down'));
  }

  async recycleChild(child: string): Promise<Running> {
    await this.groupRepair.settled();
    this.mustBeUp();
    const { name } = this.options;
    const slot = this.find(child);
    const { state } = slot.status;
    if (state !== 'up') throw new SupervisionError('SUP_CHILD_EXISTS', [name, child, state]);
    // Apart from its siblings until it is back: a failure among them must not start a second life beside this one.
    slot.joining = true;
    const stuck = await slot.end();
    if (stuck !== undefined) this.giveUp(stuck);
    if (this.over || !slot.wanted) {
      slot.joining = false;
      throw new SupervisionError('SUP_ABORTED', [name]);
    }
    return this.visit(slot, (error) => {
      if (error === undefined || this.over) return slot.enter('down');
      slot.wanted = true;
      slot.lastReason = { kind: 'error', error };
      this.failed(slot, slot.lastReason, undefined);
    });
  }

  deleteChild(child: string): void {
    const slot = this.find(child);
    const { state } = slot.status;
    if (state !== 'down') throw new SupervisionError('SUP_CHILD_EXISTS', [this.options.name, child, state]);
    this.forget(slot);
  }

  endedByItself(slot: Slot, reason: ExitReason): void {
    if (this.over) {
      slot.enter('down');
      return;
    }
    if (this.phase === 'starting') {
      this.early.push({ slot, reason, livedMs: slot.age });
      return;
    }
    this.ownEnd(slot, reason, slot.age);
  }

  private ownEnd(slot: Slot, reason: ExitReason, livedMs: number): void {
    if (this.over) return;
    if (restarted[slot.spec.restart][reason.kind]) {
      this.failed(slot, reason, livedMs);
      return;
    }
    slot.wanted = false;
    slot.doomed = false;
    slot.enter('down');
    if (slot.spec.restart === 'temporary' || this.options.strategy === 'dynamic') this.forget(slot);
    if (!slot.spec.significant) return;
    const othersLeft = this.slots.some((other) => other !== slot && other.spec.significant && other.wanted);
    if (endsSupervisor(this.options.autoShutdown, othersLeft)) this.finish({ kind: 'shutdown' });
  }

  async stopDoomed(slot: Slot): Promise<void> {
    const stuck = await slot.end();
    if (stuck !== undefined) return this.giveUp(stuck);
    slot.doomed = false;
    if (this.over) return;
    slot.enter(slot.wanted ? 'restarting' : 'down');
    if (slot.spec.restart === 'temporary') this.forget(slot);
  }

  async startMissing(slot: Slot): Promise<void> {
    slot.doomed = false;
    const outcome = await slot.start();
    if (outcome.kind === 'hung') return this.giveUp(outcome.error);
    if (outcome.kind !== 'failed' || this.over) return;
    slot.lastReason = { kind: 'error', error: outcome.error };
    this.failed(slot, slot.lastReason, undefined);
  }

  broken(thrown: unknown): void {
    this.giveUp(new SupervisionError('SUP_BUG', [this.options.name], { cause: asError(thrown) }));
  }

  /** A life, or a start, has failed and there shall be another. */
  private failed(slot: Slot, reason: ExitReason, livedMs: number | undefined): void {
    const { name, strategy, limit, backoff } = this.options;
    const { within, times } = admit(this.restarts, this.now(), limit);
    this.restarts = times;
    if (!within) {
      slot.enter('down');
      const cause = reason.kind === 'error' ? { cause: reason.error } : undefined;
      const details = [name, limit.intensity, limit.periodMs, slot.spec.name];
      this.giveUp(new SupervisionError('SUP_INTENSITY', details, cause));
      return;
    }
    const slots = new Map(this.siblings.map((each) => [each.spec.name, each]));
    const { stop, start } = plan(
      strategy,
      [...slots.keys()],
      slot.spec.name,
      (child) => slots.get(child)?.spec.restart === 'temporary',
    );
    slot.doomed = false;
    for (const child of stop) {
      const sibling = slots.get(child) as Slot;
      sibling.doomed = true;
      sibling.wanted = false;
      sibling.abortStart();
    }
    for (const child of start) {
      const wanted = slots.get(child) as Slot;
      wanted.wanted = true;
      if (!wanted.live) wanted.enter('restarting');
    }
    const earlier = failuresInARow(slot.failures, livedMs, slot.spec.quietMs);
    slot.failures = earlier + 1;
    const delay = delayMs(earlier, backoff, this.clock.random());
    slot.retryAt = this.now() + delay;
    this.repairOf(slot).begin(delay);
  }

  private get siblings(): readonly Slot[] {
    return this.slots.filter(({ joining }) => !joining);
  }

  private repairOf(slot: Slot): Repair {
    const { strategy } = this.options;
    if (strategy === 'one_for_all' || strategy === 'rest_for_one') return this.groupRepair;
    let repair = this.repairs.get(slot);
    if (repair === undefined) {
      repair = new Repair(this, () => [slot]);
      this.repairs.set(slot, repair);
    }
    return repair;
  }

  /** A start that somebody waits for: its failure is theirs, not a restart. */
  private async visit(slot: Slot, failed: (error: Error | undefined) => void): Promise<Running> {
    slot.joining = true;
    const outcome = await slot.start();
    slot.joining = false;
    if (outcome.kind === 'up') return outcome.life;
    if (outcome.kind === 'hung') this.giveUp(outcome.error);
    slot.wanted = false;
    const { name } = this.options;
    failed(outcome.kind === 'aborted' ? undefined : outcome.error);
    if (outcome.kind === 'aborted') throw new SupervisionError('SUP_ABORTED', [name]);
    throw new SupervisionError('SUP_CHILD_START', [name, slot.spec.name], { cause: outcome.error });
  }

  private giveUp(cause: Error): void {
    this.finish({ kind: 'shutdown', cause });
  }

  private finish(reason: ExitReason): void {
    if (this.over) return;
    this.reason = reason;
    this.phase = 'stopping';
    void this.stopAll().then(() => {
      this.phase = 'ended';
      for (const cancel of this.cancelDeadlines) cancel();
      this.resolveExit(this.reason);
    });
  }

  private async stopAll(): Promise<void> {
    for (const slot of this.slots) slot.abortStart();
    for (const repair of [this.groupRepair, ...this.repairs.values()]) repair.interrupt();
    await Promise.all([this.groupRepair, ...this.repairs.values()].map((repair) => repair.settled()));
    const end = async (slot: Slot): Promise<void> => {
      await slot.end(this.impatient ? 'brutal' : slot.spec.shutdown);
      slot.enter('down');
    };
    if (this.options.strategy === 'dynamic' || this.impatient) await Promise.all(this.slots.map(end));
    else for (const slot of [...this.slots].reverse()) await end(slot);
  }

  private forget(slot: Slot): void {
    this.slots = this.slots.filter((other) => other !== slot);
    this.repairs.delete(slot);
  }

  private find(child: string): Slot {
    const slot = this.slots.find(({ spec }) => spec.name === child);
    if (slot === undefined) throw new SupervisionError('SUP_NO_CHILD', [this.options.name, child]);
    return slot;
  }

  private mustBeUp(): void {
    if (this.phase !== 'up') throw new SupervisionError('SUP_ABORTED', [this.options.name]);
  }
}
