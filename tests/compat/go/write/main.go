// Writes documents with gocb, Couchbase's Go SDK, and reads them back. tests/compat/cluster_clients.py describes the
// output.
//
// Arguments: connection string, user, password, bucket.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/couchbase/gocb/v2"
)

const patience = time.Minute

func main() {
	cluster, err := gocb.Connect(os.Args[1], gocb.ClusterOptions{
		Authenticator: gocb.PasswordAuthenticator{Username: os.Args[2], Password: os.Args[3]},
	})
	if err != nil {
		fail(err)
	}
	bucket := cluster.Bucket(os.Args[4])
	if err := bucket.WaitUntilReady(patience, nil); err != nil {
		fail(err)
	}
	collection := bucket.DefaultCollection()

	var over atomic.Bool
	var running sync.WaitGroup
	levels := map[string]gocb.DurabilityLevel{
		"plain":   gocb.DurabilityLevelNone,
		"durable": gocb.DurabilityLevelMajority,
	}
	for name, level := range levels {
		running.Add(1)
		go func() {
			defer running.Done()
			read(collection, name, write(collection, name, level, &over))
		}()
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		fail(err)
	}
	over.Store(true)
	running.Wait()
}

// Writes each document twice, and returns the number of writes.
func write(collection *gocb.Collection, name string, level gocb.DurabilityLevel, over *atomic.Bool) int {
	count := 0
	for ; !over.Load(); count++ {
		key := fmt.Sprintf("%s-%d", name, count/2)
		if _, err := collection.Upsert(key, count, &gocb.UpsertOptions{DurabilityLevel: level}); err != nil {
			fmt.Fprintln(os.Stderr, key, err) // it is not known whether the document was written
			continue
		}
		fmt.Println(name, key, count)
	}
	return count
}

func read(collection *gocb.Collection, name string, count int) {
	for number := range (count + 1) / 2 {
		key := fmt.Sprintf("%s-%d", name, number)
		found, err := collection.Get(key, nil)
		if errors.Is(err, gocb.ErrDocumentNotFound) {
			continue
		}
		var value int
		if err == nil {
			err = found.Content(&value)
		}
		if err != nil {
			fail(err)
		}
		fmt.Println("kept", key, value)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
