/**
 * Prometheus metrics of one process. A family holds at most `maxSeries` label sets; what comes after is counted under
 * `other`, so that no client can make the exposition grow.
 */

export type Labels = Readonly<Record<string, string>>;
type Kind = 'counter' | 'gauge' | 'histogram';

/** A value somebody else keeps, read at scrape time. */
export interface Sample {
  readonly name: string;
  readonly help: string;
  readonly kind: 'counter' | 'gauge';
  readonly labels?: Labels;
  readonly value: number;
}

export interface Counter {
  add(amount: number): void;
}

export interface Histogram {
  observe(value: number): void;
}

const maxSeries = 200;
const quoted = (text: string) => text.replace(/[\\\n"]/g, (char) => (char === '\n' ? '\\n' : `\\${char}`));
const braces = (labels: Labels) => {
  const inner = Object.entries(labels).map(([name, value]) => `${name}="${quoted(value)}"`);
  return inner.length === 0 ? '' : `{${inner.join(',')}}`;
};
const shown = (value: number) => (Number.isFinite(value) ? String(value) : value > 0 ? '+Inf' : 'NaN');

interface Series {
  lines(name: string): string[];
}

class Count implements Counter, Series {
  readonly #labels: string;
  #value = 0;
  constructor(labels: Labels) {
    this.#labels = braces(labels);
  }
  add(amount: number): void {
    this.#value += amount;
  }
  lines(name: string): string[] {
    return [`${name}${this.#labels} ${shown(this.#value)}`];
  }
}

class Buckets implements Histogram, Series {
  readonly #labels: Labels;
  readonly #bounds: readonly number[];
  readonly #counts: number[];
  #sum = 0;
  constructor(labels: Labels, bounds: readonly number[]) {
    this.#labels = labels;
    this.#bounds = bounds;
    this.#counts = new Array<number>(bounds.length + 1).fill(0);
  }
  observe(value: number): void {
    let at = 0;
    while (at < this.#bounds.length && value > (this.#bounds[at] as number)) at++;
    (this.#counts[at] as number)++;
    this.#sum += value;
  }
  lines(name: string): string[] {
    let total = 0;
    const lines = this.#counts.map((count, at) => {
      total += count;
      const le = shown(this.#bounds[at] ?? Number.POSITIVE_INFINITY);
      return `${name}_bucket${braces({ ...this.#labels, le })} ${total}`;
    });
    const labels = braces(this.#labels);
    return [...lines, `${name}_sum${labels} ${shown(this.#sum)}`, `${name}_count${labels} ${total}`];
  }
}

/** One metric name with a series per label set. */
class Family<S extends Series> {
  readonly #series = new Map<string, S>();
  readonly #create: (labels: Labels) => S;
  readonly name: string;
  readonly help: string;
  readonly kind: Kind;

  constructor(name: string, help: string, kind: Kind, create: (labels: Labels) => S) {
    this.name = name;
    this.help = help;
    this.kind = kind;
    this.#create = create;
  }

  with(labels: Labels): S {
    const key = Object.values(labels).join('\u0000');
    const known = this.#series.get(key);
    if (known !== undefined) return known;
    if (this.#series.size >= maxSeries) {
      const other = Object.fromEntries(Object.keys(labels).map((label) => [label, 'other']));
      const rest = this.#series.get('other') ?? this.#create(other);
      this.#series.set('other', rest);
      return rest;
    }
    const fresh = this.#create(labels);
    this.#series.set(key, fresh);
    return fresh;
  }

  text(): string {
    const lines = [...this.#series.values()].flatMap((series) => series.lines(this.name));
    return lines.length === 0 ? '' : `${head(this.name, this.help, this.kind)}${lines.join('\n')}\n`;
  }
}

const head = (name: string, help: string, kind: Kind) => `# HELP ${name} ${help}\n# TYPE ${name} ${kind}\n`;

export class Metrics {
  readonly #families: Family<Series>[] = [];

  #add<S extends Series>(family: Family<S>): Family<S> {
    this.#families.push(family);
    return family;
  }

  counter(name: string, help: string): { with(labels: Labels): Counter } {
    return this.#add(new Family(name, help, 'counter', (labels) => new Count(labels)));
  }

  /** `bounds` ascending, in the unit the name says. */
  histogram(name: string, help: string, bounds: readonly number[]): { with(labels: Labels): Histogram } {
    return this.#add(new Family(name, help, 'histogram', (labels) => new Buckets(labels, bounds)));
  }

  /** Text exposition format 0.0.4; `samples` are appended, grouped by name. */
  text(samples: readonly Sample[]): string {
    const groups = new Map<string, Sample[]>();
    for (const sample of samples) {
      const group = groups.get(sample.name);
      if (group === undefined) groups.set(sample.name, [sample]);
      else group.push(sample);
    }
    const read = [...groups.values()].map((group) => {
      const { name, help, kind } = group[0] as Sample;
      const lines = group.map((sample) => `${name}${braces(sample.labels ?? {})} ${shown(sample.value)}\n`);
      return head(name, help, kind) + lines.join('');
    });
    return this.#families.map((family) => family.text()).join('') + read.join('');
  }
}
