/** What each fault does, and how it ends. One row per kind. */
import type { ResolvedConfig } from '../../supervisors/index.js';
import type { MemoryBroker } from '../../transport/index.js';
import type { Network } from './network.js';
import type { Life, Node } from './node.js';
import type { Fault, FaultKind } from './schedule.js';
import type { Timeline } from './timeline.js';

export interface FaultScene {
  readonly fault: Fault;
  readonly node: Node;
  readonly network: Network;
  readonly broker: MemoryBroker;
  readonly timeline: Timeline;
  readonly config: ResolvedConfig;
  /** Its cause is gone: from here on everything must recover. */
  over(): void;
}

const slowness = 20;

export const faults: Readonly<Record<FaultKind, (scene: FaultScene) => void>> = {
  crash: onLife((life, { over }) => {
    life.end({ kind: 'killed' }, 'signal SIGKILL');
    over();
  }),
  freeze(scene) {
    const { fault, node } = scene;
    if (fault.target === 'node') {
      lasting(
        scene,
        () => node.machine.freeze(),
        () => node.machine.thaw(),
      );
      return;
    }
    onLife((life, { config, timeline }) => {
      lasting(
        scene,
        () => life.machine.freeze(),
        () => life.machine.thaw(),
      );
      // The node's watchdog.
      const { silentMs, gatewaySilentMs } = config.node;
      timeline.after(life.role === 'gateway' ? gatewaySilentMs : silentMs, () => {
        if (life.machine.state === 'frozen') life.end({ kind: 'killed' }, 'silent');
      });
    })(scene);
  },
  wedge: onLife((life, { config, timeline, over }) => {
    life.engine?.wedge();
    // The node's watchdog sees it if there is work, and it does no harm otherwise but to the next request.
    timeline.after(config.node.stuckMs, () => {
      life.end({ kind: 'killed' }, 'the engine took no step');
      over();
    });
  }),
  slow: onLife((life, scene) =>
    lasting(
      scene,
      () => scene.network.slow(life.machine.name, slowness),
      () => scene.network.slow(life.machine.name, 1),
    ),
  ),
  partition: onLife((life, scene) =>
    lasting(
      scene,
      () => scene.network.partition(life.machine.name),
      () => scene.network.heal(life.machine.name),
    ),
  ),
  'clock-jump': onLife((life, { fault, over }) => {
    life.machine.skew(fault.forMs);
    over();
  }),
  'broker-restart': (scene) =>
    lasting(
      scene,
      () => scene.broker.stop(),
      () => scene.broker.start(),
    ),
  'broker-crash': (scene) =>
    lasting(
      scene,
      () => scene.broker.stop('crash'),
      () => scene.broker.start(),
    ),
  'disk-full': (scene) =>
    lasting(
      scene,
      () => scene.broker.full(true),
      () => scene.broker.full(false),
    ),
  drain({ fault, node, over }) {
    node.recycle(fault.target);
    over();
  },
};

/** Whoever lives under this name now; nobody: nothing happens. */
function onLife(act: (life: Life, scene: FaultScene) => void): (scene: FaultScene) => void {
  return (scene) => {
    const life = scene.node.lives.get(scene.fault.target);
    if (life === undefined || life.machine.state === 'dead') scene.over();
    else act(life, scene);
  };
}

function lasting({ fault, timeline, over }: FaultScene, begin: () => void, end: () => void): void {
  begin();
  timeline.after(fault.forMs, () => {
    end();
    over();
  });
}
