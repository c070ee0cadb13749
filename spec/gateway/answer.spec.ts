import { expect } from 'chai';
import fc from 'fast-check';
import type { AnswerShape } from '../../actors/index.js';
import { answerParser } from '../../gateway/answer/parser.js';
import { readAnswer } from '../../gateway/answer/whole.js';

const shape: AnswerShape = { tools: ['add', 'now'], reasoning: 'may' };

function read(pieces: readonly string[], of: AnswerShape = shape) {
  const parser = answerParser(of);
  const calls: { name: string; arguments: string }[] = [];
  const said = { content: '', reasoning: '', calls };
  const shown: string[] = [];
  for (const delta of [...pieces.flatMap((piece) => [...parser.push(piece)]), ...parser.end()]) {
    if (delta.kind === 'call') {
      expect(delta.call).to.equal(calls.length);
      calls.push({ name: delta.name, arguments: '' });
      continue;
    }
    expect(delta.text).not.to.equal('');
    shown.push(delta.text);
    if (delta.kind === 'arguments') (calls[delta.call] as { arguments: string }).arguments += delta.text;
    else said[delta.kind] += delta.text;
  }
  expect(parser.calls).to.equal(calls.length);
  return { ...said, shown };
}

const call = (name: string, text: string) => `<tool_call>\n{"name": "${name}", "arguments": ${text}}\n</tool_call>`;

describe('Answer of a model', () => {
  it('is content, reasoning and calls of tools', () => {
    const text = `<think>\nTwo numbers.\n</think>\n\nI add. ${call('add', '{"a": [1, 2], "s": "}</tool_call>\\""}')}\n${call('now', '{}')}`;
    const { content, reasoning, calls } = read([text]);
    expect(reasoning).to.equal('Two numbers.\n');
    expect(content).to.equal('I add. ');
    expect(calls).to.deep.equal([
      { name: 'add', arguments: '{"a": [1, 2], "s": "}</tool_call>\\""}' },
      { name: 'now', arguments: '{}' },
    ]);
  });

  it('begins with reasoning where the prompt has opened it', () => {
    const { content, reasoning } = read(['so ', 'it is</thi', 'nk>\n4'], { reasoning: 'open' });
    expect([reasoning, content]).to.deep.equal(['so it is', '4']);
  });

  it('shows arguments as they come, not when they are complete', () => {
    const parser = answerParser(shape);
    parser.push('<tool_call>{"name":"add","arguments":{"a":');
    expect(parser.push('12')).to.deep.equal([{ kind: 'arguments', call: 0, text: '12' }]);
    expect(parser.push('3')).to.deep.equal([{ kind: 'arguments', call: 0, text: '3' }]);
  });

  it('takes calls whose arguments come first, and calls without any', () => {
    const { calls } = read([
      '<tool_call>{"arguments":{"a":1},"name":"add"}</tool_call><tool_call>{"name": "now"}</tool_call>',
    ]);
    expect(calls).to.deep.equal([
      { name: 'add', arguments: '{"a":1}' },
      { name: 'now', arguments: '{}' },
    ]);
  });

  for (const [what, text] of [
    ['a tool that there is not', call('rm', '{}')],
    ['no JSON', '<tool_call>add 1 and 2</tool_call>'],
    ['a call that never ends', '<tool_call>{"name": "a'],
    ['a mark that is none', 'a <tool_cal b <think c'],
  ] as const) {
    it(`leaves ${what} in the content`, () => {
      const { content, calls } = read([`x ${text} y`]);
      expect(content).to.equal(`x ${text} y`);
      expect(calls).to.deep.equal([]);
    });
  }

  it('does not look for calls when no tool may be called, nor for reasoning in a model that has none', () => {
    const text = `<think>a</think>${call('add', '{}')}`;
    expect(read([text], { reasoning: 'may' }).content).to.equal(call('add', '{}'));
    expect(read([text], { tools: ['add'] }).content).to.equal('<think>a</think>');
  });

  it('is the same however the text is cut, and the same streamed and whole', () => {
    const part = fc.constantFrom(
      '<think>',
      '</think>',
      '<tool_call>',
      '</tool_call>',
      '{"name": "add", "arguments": ',
      '{"name":"rm","arguments":{}}',
      '{"a": "b\\"}"}',
      '{}',
      '}',
      '\n',
      ' ',
      'text',
      '<',
      '{"arguments": {"x": 1}, "name": "now"}',
      ...'<t>{"\\}'.split(''),
    );
    const text = fc.array(part, { maxLength: 12 }).map((parts) => parts.join(''));
    const shapes = fc.constantFrom<AnswerShape>(
      shape,
      { tools: ['add', 'now'] },
      { reasoning: 'open' },
      { ...shape, reasoning: 'open' },
    );
    fc.assert(
      fc.property(text, shapes, fc.array(fc.nat(40), { maxLength: 12 }), (whole, of, cuts) => {
        const pieces: string[] = [];
        let rest = whole;
        for (const cut of cuts) {
          pieces.push(rest.slice(0, cut));
          rest = rest.slice(cut);
        }
        const { shown: _once, ...once } = read([whole], of);
        const { shown, ...cutUp } = read([...pieces, rest], of);
        const { shown: _letters, ...letters } = read([...whole], of);
        expect(cutUp).to.deep.equal(once);
        expect(letters).to.deep.equal(once);
        const { text: content, reasoning = '', calls = [] } = readAnswer(whole, 'stop', of);
        expect({ content, reasoning, calls }).to.deep.equal(once);
        expect(shown.join('').length).to.be.at.most(whole.length);
      }),
      { numRuns: 2_000 },
    );
  });
});
