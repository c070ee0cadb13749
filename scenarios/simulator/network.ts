/**
 * Links between processes and the broker. Each direction of a link is a TCP connection: what is sent later does not arrive earlier, unless a
 * fault says so. A partition holds everything back; when it lasts, the connection breaks and what was under way is lost.
 */
import type { Hop, MemoryBroker } from '../../transport/index.js';
import type { Machine } from './machine.js';
import type { Timeline } from './timeline.js';

/** Chances per hop, [0, 1). Only what may be lost by its contract is: core messages, answers, and the broker's acknowledgements. */
export interface Rates {
  readonly drop: number;
  readonly duplicate: number;
  readonly reorder: number;
  readonly delay: number;
}

export interface NetworkSurroundings {
  readonly timeline: Timeline;
  readonly random: () => number;
  readonly rates: Rates;
  machine(name: string): Machine | undefined;
  broker(): MemoryBroker;
}

export interface Network {
  deliver(hop: Hop, arrive: () => void): void;
  partition(name: string): void;
  heal(name: string): void;
  /** Hops of this process take this many times as long; 1 = as usual. */
  slow(name: string, factor: number): void;
}

/** Milliseconds of one hop on a loopback. */
const hopMs = { least: 0.03, most: 0.3 } as const;
const delayMs = 50;
/** Silence after which a connection counts as broken: two pings of the client. */
const brokenAfterMs = 1_250;

const losable: Readonly<Record<Hop['kind'], boolean>> = {
  core: true,
  request: true,
  reply: true,
  ack: true,
  store: false,
  deliver: false,
  watch: false,
  lease: false,
  state: false,
};

interface Link {
  /** When the last one sent in a direction arrives. */
  readonly last: { broker: number; client: number };
  factor: number;
  /** Sent during a partition, not yet given up. */
  held: (() => void)[] | undefined;
  giveUp: () => void;
  /** Counts connections: what was under way in an earlier one is lost. */
  connection: number;
}

export function createNetwork({ timeline, random, rates, machine, broker }: NetworkSurroundings): Network {
  const links = new Map<string, Link>();
  const linkOf = (name: string): Link => {
    let link = links.get(name);
    if (link === undefined) {
      link = { last: { broker: 0, client: 0 }, factor: 1, held: undefined, giveUp: () => {}, connection: 0 };
      links.set(name, link);
    }
    return link;
  };

  function send(hop: Hop, link: Link, arrive: () => void): void {
    const { connection } = link;
    const landed = () => {
      if (link.connection !== connection) return;
      if (hop.to === 'broker') arrive();
      else machine(hop.client)?.run(arrive);
    };
    const takes = (hopMs.least + random() * (hopMs.most - hopMs.least)) * link.factor;
    const late = rates.delay > 0 && random() < rates.delay ? random() * delayMs : 0;
    const overtakes = losable[hop.kind] && rates.reorder > 0 && random() < rates.reorder;
    const now = timeline.now();
    const at = overtakes ? now + takes : Math.max(link.last[hop.to], now + takes + late);
    if (!overtakes) link.last[hop.to] = at;
    timeline.after(at - now, landed);
    if (hop.kind === 'core' && rates.duplicate > 0 && random() < rates.duplicate) {
      timeline.after(at - now + random() * delayMs, landed);
    }
  }

  return {
    deliver(hop, arrive) {
      if (hop.kind === 'state') {
        machine(hop.client)?.run(arrive);
        return;
      }
      if (losable[hop.kind] && rates.drop > 0 && random() < rates.drop) return;
      const link = linkOf(hop.client);
      if (link.held === undefined) send(hop, link, arrive);
      else link.held.push(() => send(hop, link, arrive));
    },
    partition(name) {
      const link = linkOf(name);
      if (link.held !== undefined) return;
      link.held = [];
      link.giveUp = timeline.after(brokenAfterMs, () => {
        link.held = [];
        link.connection++;
        broker().cut(name);
      });
    },
    heal(name) {
      const link = linkOf(name);
      const { held, connection } = link;
      if (held === undefined) return;
      link.giveUp();
      link.held = undefined;
      if (link.connection === connection) for (const sent of held) sent();
      broker().mend(name);
    },
    slow(name, factor) {
      linkOf(name).factor = factor;
    },
  };
}
