// Prints what JSROOT reads of an export: one JSON object a line.
import { pathToFileURL } from 'node:url';

const [library, path] = process.argv.slice(2);
const { openFile, TSelector, treeProcess } = await import(pathToFileURL(library));

function plain(key, value) {
  if (typeof value === 'bigint') return `int ${value}`;
  if (Number.isNaN(value)) return 'NaN';
  // JSROOT makes one character of each byte.
  if (typeof value === 'string') return Buffer.from(value, 'latin1').toString('utf8');
  return ArrayBuffer.isView(value) ? Array.from(value) : value;
}

const tree = await (await openFile(path)).readObject('results');
const selector = new TSelector();
for (const branch of tree.fBranches.arr) selector.addBranch(branch.fName);
selector.Process = function () { console.log(JSON.stringify(this.tgtobj, plain)); };
await treeProcess(tree, selector);
