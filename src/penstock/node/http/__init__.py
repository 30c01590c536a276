"""Management over HTTP: what clients look up about nodes and buckets, and change, with the paths of Couchbase."""
