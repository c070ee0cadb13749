/**
 * OTP's supervision as a small sequential program, written from supervisor.erl's description and not from the runner: one
 * event at a time, no promises, no clock but a number. The property specs hold the runner against it.
 */
import type { ExitReason } from '../../actors/index.js';
import type { AutoShutdown, RestartType, Strategy } from '../../supervisors/otp/index.js';

export interface LeafShape {
  readonly leaf: string;
  readonly restart: RestartType;
  readonly significant: boolean;
}
export interface TreeShape {
  readonly tree: string;
  readonly restart: RestartType;
  readonly significant: boolean;
  readonly strategy: Strategy;
  readonly auto: AutoShutdown;
  readonly intensity: number;
  readonly children: readonly Shape[];
}
export type Shape = LeafShape | TreeShape;

export const periodMs = 1000;

type Kind = ExitReason['kind'];
const again = (restart: RestartType, kind: Kind): boolean =>
  restart === 'permanent' || (restart === 'transient' && (kind === 'error' || kind === 'killed'));

abstract class Node {
  live = false;
  abstract readonly shape: Shape;
  abstract start(): boolean;
  abstract stop(): void;
  abstract find(leaf: string): Leaf | undefined;
}

class Leaf extends Node {
  failures = 0;

  constructor(
    readonly shape: LeafShape,
    readonly trace: string[],
    /** The supervisor's part: what follows from an end that nobody asked for. */
    readonly parent: Tree,
  ) {
    super();
  }

  start(): boolean {
    this.live = this.failures === 0;
    if (!this.live) this.failures--;
    this.trace.push(`${this.live ? '+' : '?'}${this.shape.leaf}`);
    return this.live;
  }

  stop(): void {
    this.live = false;
    this.trace.push(`-${this.shape.leaf}`);
  }

  find(leaf: string): Leaf | undefined {
    return leaf === this.shape.leaf ? this : undefined;
  }
}

export class Tree extends Node {
  private times: number[] = [];
  /** Failures to come, by leaf: they outlive the nodes, as the children of the real tree do. */
  private readonly all: Node[];
  private children: Node[] = [];

  constructor(
    readonly shape: TreeShape,
    readonly trace: string[],
    private readonly clock: { now: number },
    private readonly parent?: Tree,
  ) {
    super();
    this.all = shape.children.map((child) =>
      'leaf' in child ? new Leaf(child, trace, this) : new Tree(child, trace, clock, this),
    );
  }

  find(leaf: string): Leaf | undefined {
    for (const child of new Set([...this.all, ...this.children])) {
      const found = child.find(leaf);
      if (found !== undefined) return found;
    }
    return undefined;
  }

  /** Itself and those below it that live. */
  get trees(): readonly Tree[] {
    if (!this.live) return [];
    return [this, ...this.children.flatMap((child) => (child instanceof Tree ? child.trees : []))];
  }

  /** One more, for this life alone. */
  add(shape: LeafShape): void {
    const leaf = new Leaf(shape, this.trace, this);
    this.children.push(leaf);
    leaf.start();
  }

  start(): boolean {
    this.children = [...this.all];
    this.times = [];
    for (const child of this.children) {
      if (child.start()) continue;
      this.stopLive();
      return false;
    }
    this.live = true;
    return true;
  }

  stop(): void {
    this.stopLive();
    this.live = false;
  }

  ended(child: Node, kind: Kind): void {
    child.live = false;
    if (again(child.shape.restart, kind)) {
      this.restart(child);
      return;
    }
    if (child.shape.restart === 'temporary' || this.shape.strategy === 'dynamic')
      this.children = this.children.filter((other) => other !== child);
    if (!child.shape.significant || this.shape.auto === 'never') return;
    const last = !this.children.some((other) => other !== child && other.live && other.shape.significant);
    if (this.shape.auto === 'any_significant' || last) this.finish();
  }

  private finish(): void {
    this.stop();
    this.parent?.ended(this, 'shutdown');
  }

  private restart(failed: Node): void {
    const { now } = this.clock;
    this.times = [...this.times.filter((time) => time >= now - periodMs), now];
    if (this.times.length > this.shape.intensity) {
      this.finish();
      return;
    }
    const { strategy } = this.shape;
    const from = strategy === 'one_for_all' ? 0 : this.children.indexOf(failed);
    const alone = strategy === 'one_for_one' || strategy === 'dynamic';
    const group = alone ? [failed] : this.children.slice(from);
    for (const child of [...group].reverse()) if (child.live) child.stop();
    this.children = this.children.filter(
      (child) => child === failed || !group.includes(child) || child.shape.restart !== 'temporary',
    );
    for (const child of group) {
      if (!this.children.includes(child) || child.start()) continue;
      this.restart(child);
      return;
    }
  }

  private stopLive(): void {
    const order = this.shape.strategy === 'dynamic' ? this.children : [...this.children].reverse();
    for (const child of order) if (child.live) child.stop();
  }
}
