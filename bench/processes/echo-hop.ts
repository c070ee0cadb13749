/**
 * One hop of the bare JetStream echo: reads a mailbox stream and passes each message on, the first hop into another mailbox, the last
 * one as a core message. Arguments: credentials file, address to read, `store` or `send`, subject to write.
 */
import { type Address, connectNats, readCredentials, subjects } from '../../transport/index.js';

const [credentials = '', from = '', how = '', to = ''] = process.argv.slice(2);
const bus = await connectNats({ ...readCredentials(credentials), name: `echo-${how}` });
let passed = 0;
await bus.follow('MAIL', subjects(bus.namespace).mail(from as Address), 'new', ({ data }) => {
  if (how === 'send') bus.send(to, data);
  else
    bus.store(to, data, `hop-${process.pid}-${++passed}`, 5_000).catch((error) => process.stderr.write(`${error}\n`));
});
process.stdout.write('ready\n');
process.on('SIGTERM', () => process.exit(0));
