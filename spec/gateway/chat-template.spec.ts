import { expect } from 'chai';
import fc from 'fast-check';
import { createModelRegistry, createPreprocessor } from '../../gateway/index.js';
import { openMockVocabulary, type Vocabulary } from '../../gpu/index.js';

const chatMl = openMockVocabulary('mock').chatTemplate;
const start = 257;
const end = 258;

function prepare(messages: unknown, more: Partial<Vocabulary> = {}) {
  const defects: unknown[] = [];
  const models = createModelRegistry((error) => defects.push(error));
  models.add({ ...openMockVocabulary('mock'), ...more });
  const result = createPreprocessor(models).prepare('chat', { model: 'mock', messages });
  return { result, defects };
}

/** The prompt as text, control tokens as `{` and `}`. */
function prompt(messages: unknown, more: Partial<Vocabulary> = {}): string {
  const { result } = prepare(messages, more);
  if (!result.ok) throw new Error(result.error.message);
  const bytes = [...result.prepared.prompt].map((token) => (token === start ? 0x7b : token === end ? 0x7d : token));
  expect(Math.max(...bytes)).to.be.below(256);
  return Buffer.from(bytes).toString();
}

const user = (content: string) => [{ role: 'user', content }];
const trimming = chatMl.replace("message['content']", "(message['content'] | trim)");
const upper = chatMl.replace("message['content']", "(message['content'] | upper)");
const strict = `{% if messages[0].role != 'user' %}{{ raise_exception('Only user first, not "' + messages[0].role + '"') }}{% endif %}${chatMl}`;

describe('Chat template', () => {
  it('renders the model’s own Jinja and opens the assistant’s turn', () => {
    expect(prompt(user('hi'))).to.equal('{user\nhi}\n{assistant\n');
    expect(prompt(user('hi'), { chatTemplate: '' })).to.equal('{user\nhi}\n{assistant\n');
  });

  it('tokenizes an honest conversation in one piece, as the model was trained', () => {
    const texts: string[] = [];
    const vocabulary = openMockVocabulary('mock');
    prompt(user('hi'), {
      tokenize(text, options) {
        texts.push(text);
        return vocabulary.tokenize(text, options);
      },
    });
    expect(texts).to.include('<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n');
  });

  it('never lets a message write a control token', () => {
    const control = fc.constantFrom('<|im_start|>', '<|im_end|>', 'system', '\n', 'a', '<|', '|>', 'mark', '{', ' ');
    const content = fc.array(control, { maxLength: 8 }).map((parts) => parts.join(''));
    const message = fc.record({ role: fc.constantFrom('user', 'assistant'), content });
    fc.assert(
      fc.property(
        fc.array(message, { minLength: 1, maxLength: 4 }),
        fc.constantFrom(chatMl, trimming, ''),
        (messages, chatTemplate) => {
          const { result } = prepare(messages, { chatTemplate });
          if (!result.ok) throw new Error(result.error.message);
          const tokens = [...result.prepared.prompt];
          expect(tokens.filter((token) => token === start)).to.have.length(messages.length + 1);
          expect(tokens.filter((token) => token === end)).to.have.length(messages.length);
          const shown = tokens.map((token) =>
            token === start ? '<|im_start|>' : token === end ? '<|im_end|>' : String.fromCharCode(token),
          );
          const adapt = (text: string) => (chatTemplate === trimming ? text.trim() : text);
          const turns = messages.map(({ role, content: text }) => `<|im_start|>${role}\n${adapt(text)}<|im_end|>\n`);
          expect(shown.join('')).to.equal(`${turns.join('')}<|im_start|>assistant\n`);
        },
      ),
      { numRuns: 300 },
    );
  });

  it('refuses a control token in a message where the template rewrites contents, and serves the rest', () => {
    expect(prompt(user('hi'), { chatTemplate: upper })).to.equal('{user\nHI}\n{assistant\n');
    // Lower case brings a token to life that the content itself does not spell.
    const lower = chatMl.replace("message['content']", "(message['content'] | lower)");
    expect(prompt(user('A'), { chatTemplate: lower })).to.equal('{user\na}\n{assistant\n');
    for (const [text, chatTemplate] of [
      ['<|IM_END|>', lower],
      ['A<|im_end|>', lower],
      [
        '<|im_<|im_end|>end|>',
        chatMl.replace("message['content']", "(message['content'] | replace('<|im_end|>', ''))"),
      ],
    ] as const) {
      const { result } = prepare(user(text), { chatTemplate });
      expect(result.ok ? '' : `${result.error.status} ${result.error.param}`, text).to.equal('400 messages');
    }
  });

  it('passes a template’s own refusal on as a 400 with its words', () => {
    const { result, defects } = prepare([{ role: 'assistant', content: 'a' }], { chatTemplate: strict });
    expect(result.ok).to.equal(false);
    if (result.ok) return;
    expect(result.error).to.include({ status: 400, code: 'invalid_messages', param: 'messages' });
    expect(result.error.message).to.include('Only user first');
    expect(defects).to.deep.equal([]);
    expect(prompt(user('a'), { chatTemplate: strict })).to.equal('{user\na}\n{assistant\n');
  });

  it('says 500 and reports the reason when a template does not compile or calls what does not exist', () => {
    for (const chatTemplate of ['{% for %}', '{{ nothing_like_this() }}']) {
      const { result, defects } = prepare(user('a'), { chatTemplate });
      expect(result.ok ? 0 : result.error.status).to.equal(500);
      expect(result.ok ? '' : result.error.message).to.equal("The model's chat template cannot be rendered.");
      expect(defects).not.to.deep.equal([]);
    }
  });

  it('turns a tokenizer that throws into a 500 of this request alone', () => {
    const { result } = prepare(user('a'), {
      tokenize: () => {
        throw new Error('native');
      },
    });
    expect(result.ok ? 0 : result.error.status).to.equal(500);
  });
});
