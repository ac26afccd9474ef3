'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const crypto = require('crypto');

function work(me) {
    const objects = [], buffers = [];
    const hash = crypto.createHash('sha256');
    for (let i = 0; i < 250000; i++) objects.push({ id: i, name: `object ${me} ${i}`, list: [i, i + 0.5] });
    for (let i = 0; i < 400; i++) buffers.push(Buffer.alloc(65536, `buffer ${me} ${i} `));
    for (let round = 0; round < 3; round++) {
        for (let i = round; i < objects.length; i += 7) {
            if (objects[i].id !== i || objects[i].list[1] !== i + 0.5) throw new Error(`object ${i}`);
            objects[i] = { id: i, name: objects[i].name + '.', list: [i, i + 0.5, round] };
        }
        for (let i = round; i < buffers.length; i += 5) buffers[i] = Buffer.from(buffers[i]).reverse();
    }
    for (const o of objects) hash.update(JSON.stringify(o));
    for (const b of buffers) hash.update(b);
    return hash.digest('hex');
}

if (isMainThread) {
    const found = {};
    let left = 2;
    for (let me = 1; me <= 2; me++) {
        const worker = new Worker(__filename, { workerData: me });
        worker.on('message', (digest) => {
            found[me] = digest;
            if (--left === 0) console.log(work(0), found[1], found[2]);
        });
        worker.on('error', (e) => { throw e; });
    }
} else {
    parentPort.postMessage(work(workerData));
}
