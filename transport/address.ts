/** `component.incarnation.actor`, e.g. `decode.decode-0-m3k9x2.worker`: the tail of a mailbox subject. */
export type Address = string & { readonly __address: never };

export type Component = 'gateway' | 'prefill' | 'decode' | 'node';

export interface AddressParts {
  readonly component: Component;
  readonly incarnation: string;
  readonly actor: string;
}

const grammar = /^(gateway|prefill|decode|node)\.([A-Za-z0-9_-]{1,64})\.([a-z][a-z-]{0,31})$/;

export function address(component: Component, incarnation: string, actor: string): Address {
  const text = `${component}.${incarnation}.${actor}`;
  if (!grammar.test(text)) throw new TypeError(`not an address: ${text}`);
  return text as Address;
}

export function isAddress(text: unknown): text is Address {
  return typeof text === 'string' && grammar.test(text);
}

export function parts(of: Address): AddressParts {
  const [component, incarnation, actor] = of.split('.') as [Component, string, string];
  return { component, incarnation, actor };
}
