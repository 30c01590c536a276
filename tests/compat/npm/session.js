'use strict'

// Tries a node with Couchbase's Node.js SDK: prints the name of each act that succeeded, one per line, and ends with
// status 1 at the first difference. tests/compat/test_node_sdk.py runs it.
//
// Arguments: connection string, user, password.

const assert = require('node:assert/strict')
const couchbase = require('couchbase')

const [url, username, password] = process.argv.slice(2)
const OPERATIONS = 1000

async function documents(bucket) {
  const collection = bucket.defaultCollection()
  const stored = await collection.upsert('js', { n: 1 })
  const found = await collection.get('js')
  assert.deepEqual(found.content, { n: 1 })
  assert.equal(found.cas.toString(), stored.cas.toString())
  await assert.rejects(collection.insert('js', {}), couchbase.DocumentExistsError)
  await collection.replace('js', { n: 2 }, { cas: found.cas })
  await assert.rejects(collection.replace('js', {}, { cas: found.cas }), couchbase.CasMismatchError)
  assert.equal((await collection.exists('js')).exists, true)
  assert.equal((await collection.binary().increment('js-count', 2, { initial: 40 })).value, 40)
  assert.equal((await collection.binary().increment('js-count', 2)).value, 42)
  await collection.touch('js', 3600)
  const locked = await collection.getAndLock('js', 15)
  await collection.unlock('js', locked.cas)
  await collection.remove('js')
  await assert.rejects(collection.get('js'), couchbase.DocumentNotFoundError)
}

async function parts(bucket) {
  const collection = bucket.defaultCollection()
  await collection.upsert('js-parts', { name: 'Stout', tags: ['dark'] })
  await collection.mutateIn('js-parts', [
    couchbase.MutateInSpec.upsert('abv', 4.5),
    couchbase.MutateInSpec.arrayAppend('tags', 'dry'),
    couchbase.MutateInSpec.upsert('_x.rev', 7, { xattr: true, createPath: true }),
  ])
  const found = await collection.lookupIn('js-parts', [
    couchbase.LookupInSpec.get('abv'),
    couchbase.LookupInSpec.count('tags'),
    couchbase.LookupInSpec.exists('ibu'),
    couchbase.LookupInSpec.get('_x.rev', { xattr: true }),
  ])
  assert.deepEqual(found.content.map((one) => one.value), [4.5, 2, false, 7])
  assert.deepEqual((await collection.get('js-parts')).content, { name: 'Stout', tags: ['dark', 'dry'], abv: 4.5 })
}

async function collections(bucket) {
  const manager = bucket.collections()
  await manager.createScope('js')
  await manager.createCollection('beers', 'js')
  const scopes = await manager.getAllScopes()
  assert.deepEqual(scopes.find((scope) => scope.name === 'js').collections.map((one) => one.name), ['beers'])
  const beers = bucket.scope('js').collection('beers')
  await beers.upsert('k', 'a beer')
  assert.equal((await beers.get('k')).content, 'a beer')
  assert.equal((await bucket.defaultCollection().exists('k')).exists, false)
  await manager.dropScope('js')
}

async function together(bucket) {
  const collection = bucket.defaultCollection()
  const numbers = [...Array(OPERATIONS).keys()]
  await Promise.all(numbers.map((number) => collection.upsert(`js-${number}`, { number })))
  const found = await Promise.all(numbers.map((number) => collection.get(`js-${number}`)))
  assert.deepEqual(found.map((one) => one.content.number), numbers)
}

async function main() {
  const cluster = await couchbase.connect(url, { username, password })
  const bucket = cluster.bucket('beer')
  for (const act of [documents, parts, collections, together]) {
    await act(bucket)
    console.log(act.name)
  }
  await cluster.close()
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
