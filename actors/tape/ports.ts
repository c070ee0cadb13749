/**
 * Ports on the tape: what an actor is given beside messages and `ctx` (a client's connection, a vocabulary). What a port is told is an output of
 * the actor, what it answers is an input.
 */

/**
 * What becomes of a call. write: an output. read: its answer is on the tape, whatever was asked. later: a promise, whose outcome comes back
 * as a message. silent: neither; for what only repeats what the actor says elsewhere. A map: a port within. `opens`: it answers a port.
 */
export type Shape = 'write' | 'read' | 'later' | 'silent' | Shapes | { readonly opens: Shapes };
export interface Shapes {
  readonly [method: string]: Shape;
}

export interface PortCalls {
  write(port: string, method: string, args: readonly unknown[]): void;
  /** `real` is undefined where there is none: when the tape is read. */
  read(method: string, real: (() => unknown) | undefined): unknown;
}

type Method = (...args: unknown[]) => unknown;
type Port = Readonly<Record<string, unknown>>;

const isOpening = (shape: Shapes | { readonly opens: Shapes }): shape is { readonly opens: Shapes } =>
  'opens' in shape && typeof shape.opens === 'object';

/** The port as its actor sees it. Without `real` it has every method that its shape has, and does nothing. */
export function portOf(name: string, shapes: Shapes, calls: PortCalls, real?: Port): Port {
  const made: Record<string, unknown> = {};
  for (const [method, shape] of Object.entries(shapes)) {
    if (real !== undefined && real[method] === undefined) continue;
    made[method] = memberOf(name, method, shape, calls, real);
  }
  return made;
}

function memberOf(name: string, method: string, shape: Shape, calls: PortCalls, real: Port | undefined): unknown {
  // A connection has state of its own: it is called as a method.
  const call = (args: unknown[]) => ((real as Port)[method] as Method).apply(real, args);
  switch (shape) {
    case 'write':
      return (...args: unknown[]) => {
        calls.write(name, method, args);
        if (real !== undefined) call(args);
      };
    case 'read':
      return (...args: unknown[]) => calls.read(method, real && (() => call(args)));
    case 'later':
      return real === undefined ? () => new Promise(() => {}) : (...args: unknown[]) => call(args);
    case 'silent':
      return real === undefined ? () => {} : (...args: unknown[]) => call(args);
  }
  if (isOpening(shape)) {
    return (...args: unknown[]) => portOf(method, shape.opens, calls, real && (call(args) as Port));
  }
  return portOf(`${name}.${method}`, shape, calls, real?.[method] as Port | undefined);
}
