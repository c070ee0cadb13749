/**
 * The role processes of a node. A supervisor starts and stops its children one after the other, which is right for what
 * depends on what; processes of one rank do not, and loading weights takes seconds. So their first lives begin together, and
 * their last ones drain together.
 */
import type { Role } from './ipc.js';
import type { OsProcess } from './os-process.js';
import type { Child, Running } from './otp/index.js';

export interface Member {
  readonly role: Role;
  readonly instance: string;
  readonly process: OsProcess;
  /** `process`, with the first start and the last stop in step with the others. */
  readonly child: Child;
}

export interface Fleet {
  readonly members: readonly Member[];
  /** One more, beside those the configuration asks for. */
  join(process: Recruit): Member;
  leave(instance: string): void;
  /** From now on whoever is stopped takes the others of its rank along: the node ends. */
  dissolve(): void;
  /** Starts all that have not been started; the supervisor's own start then finds them under way. */
  begin(): void;
  /** Ends those that were begun and that no supervisor has taken over. */
  abandon(): Promise<void>;
}

export type Recruit = Omit<Member, 'child'>;

/** `graceMs`: how much of the time it is given to stop a process keeps for its own end, after its drain. */
export function fleet(recruits: readonly Recruit[], graceMs: number): Fleet {
  const abort = new AbortController();
  const early = new Map<string, { readonly life: Promise<Running>; readonly callOff: () => void }>();
  const living = new Map<string, { role: Role; life: Running }>();

  let dissolving = false;
  const stop = (life: Running, deadlineMs: number) => life.stop(Math.max(0, deadlineMs - graceMs));

  const enlist = ({ role, instance, process }: Recruit): Member => {
    const start = async (signal: AbortSignal): Promise<Running> => {
      const begun = early.get(instance);
      early.delete(instance);
      if (begun !== undefined)
        signal.addEventListener('abort', () => {
          // One that waits for something would never be ready to be killed.
          begun.callOff();
          void begun.life.then((life) => life.kill()).catch(() => {});
        });
      const life = await (begun?.life ?? process.start(signal));
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
    begin() {
      for (const { instance, process } of members) {
        const own = new AbortController();
        const life = process.start(AbortSignal.any([abort.signal, own.signal]));
        life.catch(() => {});
        early.set(instance, { life, callOff: () => own.abort() });
      }
    },
    async abandon() {
      abort.abort();
      for (const begun of early.values()) {
        const life = await begun.life.catch(() => undefined);
        life?.kill();
        await life?.exit;
      }
      early.clear();
    },
  };
}
