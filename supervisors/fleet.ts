/**
 * The role processes of a node. A supervisor stops its children one after the other, which is right for what depends on what; processes of
 * one rank do not. So their last lives drain together.
 */
import type { Role } from './ipc.js';
import type { OsProcess } from './os-process.js';
import type { Child, Running } from './otp/index.js';

export interface Member {
  readonly role: Role;
  readonly instance: string;
  readonly process: OsProcess;
  /** `process`, with the last stop in step with the others. */
  readonly child: Child;
}

export interface Fleet {
  readonly members: readonly Member[];
  /** One more, beside those the configuration asks for. */
  join(process: Recruit): Member;
  leave(instance: string): void;
  /** From now on whoever is stopped takes the others of its rank along: the node ends. */
  dissolve(): void;
}

export type Recruit = Omit<Member, 'child'>;

/** `graceMs`: how much of the time it is given to stop a process keeps for its own end, after its drain. */
export function fleet(recruits: readonly Recruit[], graceMs: number): Fleet {
  const living = new Map<string, { role: Role; life: Running }>();
  let dissolving = false;
  const stop = (life: Running, deadlineMs: number) => life.stop(Math.max(0, deadlineMs - graceMs));

  const enlist = ({ role, instance, process }: Recruit): Member => {
    const start = async (signal: AbortSignal): Promise<Running> => {
      const life = await process.start(signal);
      living.set(instance, { role, life });
      void life.exit.then(() => {
        if (living.get(instance)?.life === life) living.delete(instance);
      });
      return {
        incarnation: life.incarnation,
        exit: life.exit,
        kill: () => life.kill(),
        stop: (deadlineMs) => {
          if (dissolving) {
            for (const other of living.values()) if (other.role === role) void stop(other.life, deadlineMs);
          }
          return stop(life, deadlineMs);
        },
      };
    };
    return { role, instance, process, child: { start } };
  };
  let members = recruits.map(enlist);
  return {
    get members() {
      return members;
    },
    join(recruit) {
      const member = enlist(recruit);
      members = [...members, member];
      return member;
    },
    leave(instance) {
      members = members.filter((member) => member.instance !== instance);
    },
    dissolve() {
      dissolving = true;
    },
  };
}
