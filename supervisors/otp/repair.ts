/**
 * Carries out what failures have made necessary among some siblings: all of them for one_for_all and rest_for_one, one
 * alone otherwise, so that a child in its back-off keeps nobody waiting. One step at a time, each decided anew.
 */
import { nextStep } from './decisions.js';
import type { Slot } from './slot.js';

export interface RepairHost {
  /** True once the supervisor stops: no step is begun any more. */
  readonly over: boolean;
  now(): number;
  setTimer(ms: number, fire: () => void): () => void;
  stopDoomed(slot: Slot): Promise<void>;
  startMissing(slot: Slot): Promise<void>;
  broken(thrown: unknown): void;
}

export class Repair {
  private notBefore = 0;
  private wake: (() => void) | undefined;
  /** False from the moment the last step was decided, so that a failure just after it starts the work again. */
  private active = false;
  private work: Promise<void> = Promise.resolve();

  constructor(
    private readonly host: RepairHost,
    private readonly members: () => readonly Slot[],
  ) {}

  /** Resolves when nothing is left to repair. */
  async settled(): Promise<void> {
    while (this.active) await this.work;
  }

  /** Something is to be stopped or started; starts wait `delayMs`. */
  begin(delayMs: number): void {
    this.notBefore = Math.max(this.notBefore, this.host.now() + delayMs);
    if (this.active) {
      this.wake?.();
      return;
    }
    this.active = true;
    this.work = this.run().catch((thrown: unknown) => this.host.broken(thrown));
  }

  /** Ends a wait, so that `over` is seen. */
  interrupt(): void {
    this.wake?.();
  }

  private async run(): Promise<void> {
    try {
      await this.steps();
    } finally {
      this.active = false;
    }
  }

  private async steps(): Promise<void> {
    while (!this.host.over) {
      const step = nextStep(this.members(), this.host.now(), this.notBefore);
      switch (step.kind) {
        case 'done':
          return;
        case 'wait':
          await this.sleep(step.ms);
          break;
        case 'stop':
          await this.host.stopDoomed(step.member);
          break;
        case 'start':
          await this.host.startMissing(step.member);
          break;
      }
    }
  }

  private async sleep(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const cancel = this.host.setTimer(ms, resolve);
      this.wake = () => {
        cancel();
        resolve();
      };
    });
    this.wake = undefined;
  }
}
