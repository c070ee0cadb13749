/** Workers of the other role that hand KV to this one or take it from it: who they are, and what the worker hears of them. */
import { createHash } from 'node:crypto';
import type { WorkerMessage } from '../../actors/index.js';
import type { ModelCard } from '../../gpu/index.js';
import type { InstanceInfo } from '../../transport/index.js';

/** Names the prefill queue of all workers whose KV is interchangeable: a subject token. */
export const poolOf = ({ id, fingerprint }: Pick<ModelCard, 'id' | 'fingerprint'>): string =>
  createHash('sha256').update(`${id}\0${fingerprint}`).digest('hex').slice(0, 32);

type PeerNews = Extract<WorkerMessage, { readonly type: 'PeerSeen' | 'PeerLeaving' | 'PeerGone' }>;

export interface Peers {
  /** An entry of the registry came, changed or went. */
  changed(other: InstanceInfo, gone: boolean): void;
  /** Its node says that it will never speak again, which is sooner than its lease does. */
  dead(incarnation: string): void;
}

export function joinPeers(self: InstanceInfo, tell: (news: PeerNews) => void): Peers {
  const known = new Set<string>();
  const forget = (incarnation: string) => {
    if (known.delete(incarnation)) tell({ type: 'PeerGone', incarnation });
  };
  return {
    changed(other, gone) {
      const { component, incarnation, model, fingerprint, draining } = other;
      if (component === 'gateway' || component === self.component) return;
      if (model !== self.model || fingerprint !== self.fingerprint) return;
      if (gone) forget(incarnation);
      else {
        known.add(incarnation);
        tell({ type: draining ? 'PeerLeaving' : 'PeerSeen', incarnation });
      }
    },
    dead: forget,
  };
}
