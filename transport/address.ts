/** `component.incarnation.actor`, e.g. `decode.decode-0-m3k9x2.worker`: the tail of a mailbox subject. */
export type Address = string & { readonly __address: never };

export type Component = 'gateway' | 'prefill' | 'decode' | 'node';

export interface AddressParts {
  readonly component: Component;
  readonly incarnation: string;
  readonly actor: string;
}

const grammar = /^(gateway|prefill|decode|node)\.([A-Za-z0-9_-]{1,64})\.([a-z][a-z-]{0,31})$/;

/** What was read of an address before: each message names two, of the few that a process deals with. */
const known = new Map<string, AddressParts>();
/** Beyond it all are forgotten, so that whoever makes up addresses costs time and no memory. */
const knownMost = 4_096;

function read(text: string): AddressParts | undefined {
  const before = known.get(text);
  if (before !== undefined) return before;
  if (!grammar.test(text)) return undefined;
  const [component, incarnation, actor] = text.split('.') as [Component, string, string];
  if (known.size >= knownMost) known.clear();
  const parts = { component, incarnation, actor };
  known.set(text, parts);
  return parts;
}

export function address(component: Component, incarnation: string, actor: string): Address {
  const text = `${component}.${incarnation}.${actor}`;
  if (read(text) === undefined) throw new TypeError(`not an address: ${text}`);
  return text as Address;
}

export function isAddress(text: unknown): text is Address {
  return typeof text === 'string' && read(text) !== undefined;
}

export function parts(of: Address): AddressParts {
  const known = read(of);
  if (known === undefined) throw new TypeError(`not an address: ${of}`);
  return known;
}
