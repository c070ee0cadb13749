/**
 * The actors whose lives are on the tape: how each is made, from data and ports, when it is recorded and when it is run again. A new one is one
 * more row.
 */
import { frontendActor } from '../frontend/frontend.js';
import type { FrontendConfig, FrontendMessage, FrontendPorts } from '../frontend/state.js';
import { journalActor } from '../journal/journal.js';
import type { Behaviour, Ref } from '../kernel/contract.js';
import type { LivenessLimits } from '../registry/liveness.js';
import { registryActor } from '../registry/registry.js';
import type { RouterMessage } from '../router/messages.js';
import { routerActor } from '../router/router.js';
import type { RouterConfig } from '../router/state.js';
import { Named } from './codec.js';
import type { Shapes } from './ports.js';

export interface ActorKind<Made, Ports, M> {
  make(made: Made, ports: Ports): Behaviour<M, unknown>;
  readonly ports: Shapes;
  /** Its messages hold prompts or tokens: they are on the tape with level `full` only. */
  readonly content: boolean;
  /** What is written of a message where content is withheld; undefined: nothing, and no entry is. */
  readonly essence?: (message: M) => unknown;
  /** Request that a message is about; '' if it is about none. */
  readonly request: (message: M) => string;
  /** The ports that come with a message: each is replaced by what `port` makes of it. */
  readonly adopt?: (message: M, port: (name: string, shapes: Shapes, real: unknown) => unknown) => M;
  /** The message as it is written, after `adopt`. */
  readonly written?: (message: M) => unknown;
}

const client: Shapes = { begin: 'write', text: 'write', finish: 'write', end: 'write', fail: 'write' };

const router: ActorKind<{ readonly config: Omit<RouterConfig, 'tape'> }, Pick<RouterConfig, 'tape'>, RouterMessage> = {
  make: ({ config }, { tape }) => routerActor({ ...config, tape }) as Behaviour<RouterMessage, unknown>,
  // Decisions are on the tape as they are, and what comes of them is told to the frontend.
  ports: { tape: { decided: 'silent', began: 'silent' } },
  content: false,
  request: (message) => (message.type === 'Route' ? message.request.id : ''),
};

const frontend: ActorKind<
  { readonly config: FrontendConfig; readonly router: Ref<RouterMessage> },
  FrontendPorts,
  FrontendMessage
> = {
  make: ({ config, router: to }, ports) => frontendActor(config, ports, to) as Behaviour<FrontendMessage, unknown>,
  ports: {
    preprocessor: { prepare: 'read' },
    detokenizers: { open: { opens: { push: 'read', end: 'read' } } },
    summary: 'write',
    poison: 'write',
    broken: 'write',
    accepted: 'write',
  },
  content: true,
  essence(message) {
    switch (message.type) {
      case 'Submit':
        return { type: message.type, api: message.api, ticket: message.ticket, label: message.label };
      case 'Frame':
        // Frames are on the TAPE as they came.
        return undefined;
      case 'DryRunDone':
        return { type: message.type, id: message.id };
      case 'Resynced': {
        const { type, num, attempt, worker } = message;
        return { type, num, attempt, worker };
      }
      default:
        return message;
    }
  },
  request: (message) => ('req' in message ? message.req : ''),
  adopt: (message, port) =>
    message.type === 'Submit'
      ? { ...message, stream: port(`client ${message.ticket}`, client, message.stream) as typeof message.stream }
      : message,
  // Of the body only what `prepare` made of it counts, and that is an answer.
  written: (message) =>
    message.type === 'Submit' ? { ...message, body: null, stream: new Named(`client ${message.ticket}`, 0) } : message,
};

type Registry = typeof registryActor;
type RegistryMessage = Parameters<ReturnType<Registry>['handle']>[1];

const registry: ActorKind<
  {
    readonly router: Parameters<Registry>[0];
    readonly frontend: Parameters<Registry>[1];
    readonly limits: LivenessLimits;
  },
  { readonly changed: Parameters<Registry>[3] },
  RegistryMessage
> = {
  make: ({ router: of, frontend: to, limits }, { changed }) =>
    registryActor(of, to, limits, changed) as Behaviour<RegistryMessage, unknown>,
  ports: { changed: 'write' },
  content: false,
  request: () => '',
};

type JournalActor = typeof journalActor;
type JournalMessage = Parameters<ReturnType<JournalActor>['handle']>[1];

const journal: ActorKind<
  { readonly config: Parameters<JournalActor>[0] },
  { readonly journal: Parameters<JournalActor>[1] },
  JournalMessage
> = {
  make: ({ config }, { journal: books }) => journalActor(config, books) as Behaviour<JournalMessage, unknown>,
  ports: { journal: { append: 'later', last: 'later' } },
  content: false,
  request: (message) =>
    message.type === 'Accepted' ? message.entry.req : message.type === 'Ended' ? message.end.req : '',
};

export const actorKinds = { router, frontend, registry, journal } as const;
export type ActorKinds = typeof actorKinds;
export type KindName = keyof ActorKinds;
type Of<K extends KindName> =
  ActorKinds[K] extends ActorKind<infer Made, infer Ports, infer M>
    ? { readonly made: Made; readonly ports: Ports; readonly message: M }
    : never;
export type MadeOf<K extends KindName> = Of<K>['made'];
export type PortsOf<K extends KindName> = Of<K>['ports'];
export type MessageOf<K extends KindName> = Of<K>['message'];
export type AnyKind = ActorKind<unknown, unknown, { readonly type: string }>;
export const isKind = (name: string): name is KindName => Object.hasOwn(actorKinds, name);
