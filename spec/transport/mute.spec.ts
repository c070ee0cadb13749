import { expect } from 'chai';
import { type Bus, createMemoryBroker, createPost, NetError } from '../../transport/index.js';
import { fresh, head } from './kit.js';

/** A clock that stands until it is moved; `late`: a timer fires only then, however long it has been due. */
function standing() {
  let now = 0;
  let timers: { readonly at: number; readonly fire: () => void }[] = [];
  return {
    now: () => now,
    wallTime: () => now,
    setTimer(ms: number, fire: () => void) {
      const timer = { at: now + ms, fire };
      timers.push(timer);
      return () => {
        timers = timers.filter((each) => each !== timer);
      };
    },
    async forward(ms: number, late = false) {
      const end = now + ms;
      if (late) now = end;
      for (;;) {
        const next = timers.filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
        if (next === undefined) break;
        timers = timers.filter((each) => each !== next);
        now = Math.max(now, next.at);
        next.fire();
        for (let turn = 0; turn < 10; turn++) await Promise.resolve();
      }
      now = end;
    },
  };
}

describe('A broker that stores nothing', () => {
  function rig(answers: boolean) {
    const clock = standing();
    const state = { answers };
    const bus: Bus = Object.create(createMemoryBroker({ namespace: 'spec' }).connect('spec', clock), {
      store: {
        value: (subject: string, _data: Uint8Array, _id: string, ms: number) =>
          state.answers
            ? Promise.resolve(1)
            : new Promise<number>((_resolve, reject) =>
                clock.setTimer(ms, () => reject(new NetError('NET_TIMEOUT', { ms, what: subject }))),
              ),
      },
    });
    const post = createPost(bus);
    const heard: boolean[] = [];
    post.outbox.onMute((mute) => heard.push(mute));
    const send = (budgetMs = 60_000) =>
      void post
        .command(
          fresh('gateway'),
          fresh(),
          'Cancel',
          { reply: { gateway: 'gw', num: 1 }, reason: '' },
          head({ budgetMs }),
        )
        .catch(() => {});
    return { clock, state, post, heard, send };
  }

  it('is mute after a second and a half of silence while a command waits, and stores again with the first answer', async () => {
    const { clock, state, post, heard, send } = rig(false);
    send();
    await clock.forward(1_400);
    expect(post.outbox.mute).to.equal(false);
    await clock.forward(200);
    expect(post.outbox.mute).to.equal(true);
    state.answers = true;
    await clock.forward(6_000);
    expect(post.outbox.mute).to.equal(false);
    expect(post.outbox.messages).to.equal(0);
    expect(heard).to.deep.equal([true, false]);
  });

  it('is not mute while it answers others, nor when nothing is sent', async () => {
    const { clock, state, post, heard, send } = rig(false);
    send(4_000);
    for (let round = 0; round < 10; round++) {
      state.answers = true;
      send();
      state.answers = false;
      await clock.forward(1_000);
    }
    await clock.forward(60_000);
    expect(heard).to.deep.equal([]);
    expect(post.outbox.mute).to.equal(false);
  });

  it('is asked again after a while in which nobody had anything to send', async () => {
    const { clock, post, heard, send } = rig(false);
    send(2_000);
    await clock.forward(1_900);
    expect(post.outbox.mute).to.equal(true);
    await clock.forward(8_000);
    expect(heard).to.deep.equal([true, false]);
    send(2_000);
    await clock.forward(1_900);
    expect(heard).to.deep.equal([true, false, true]);
  });

  it('is not taken for mute by a process that stood still itself', async () => {
    const { clock, heard, send } = rig(false);
    send();
    await clock.forward(4_000, true);
    expect(heard).to.deep.equal([]);
    await clock.forward(1_600);
    expect(heard).to.deep.equal([true]);
  });
});
