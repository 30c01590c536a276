// Counts the mutations of a bucket with go-dcp, for a benchmark. It keeps its positions in a file that is never written.
//
// Arguments: address of the key-value port (unused), address of the HTTP port, user, password, bucket, number of
// mutations to wait for, and `beginning` or `now`. With `now` it prints the key and the arrival of each one.
package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/Trendyol/go-dcp"
	"github.com/Trendyol/go-dcp/config"
	"github.com/Trendyol/go-dcp/models"
)

type arrival struct {
	key  string
	time int64
}

func main() {
	wanted, err := strconv.Atoi(os.Args[6])
	if err != nil {
		fail(err)
	}
	now := os.Args[7] == "now"
	settings := &config.Dcp{
		Hosts:      []string{"http://" + os.Args[2]},
		Username:   os.Args[3],
		Password:   os.Args[4],
		BucketName: os.Args[5],
	}
	settings.Metadata.Type = "file"
	settings.Metadata.ReadOnly = true
	settings.Metadata.Config = map[string]string{"fileName": filepath.Join(os.TempDir(), "go-dcp-without-positions")}
	settings.Checkpoint.Type = "manual"
	if now {
		settings.Checkpoint.AutoReset = "latest"
	}
	settings.Dcp.Group.Name = "count"
	settings.Dcp.Group.Membership.Type = "static"
	settings.Dcp.Group.Membership.MemberNumber = 1
	settings.Dcp.Group.Membership.TotalMembers = 1
	settings.Dcp.Group.Membership.RebalanceDelay = time.Millisecond
	settings.RollbackMitigation.Disabled = true
	settings.HealthCheck.Disabled = true
	settings.API.Disabled = true
	settings.Logging.Level = "error"

	var lock sync.Mutex
	var arrivals []arrival
	count, size := 0, 0
	done := make(chan struct{})
	connector, err := dcp.NewDcp(settings, func(context *models.ListenerContext) {
		if event, ok := context.Event.(models.DcpMutation); ok {
			lock.Lock()
			size += len(event.Value)
			if now {
				arrivals = append(arrivals, arrival{string(event.Key), time.Now().UnixNano()})
			}
			count++
			if count == wanted {
				close(done)
			}
			lock.Unlock()
		}
		context.Ack()
	})
	if err != nil {
		fail(err)
	}
	fmt.Println("starting")
	go connector.Start()
	<-connector.WaitUntilReady()
	fmt.Println("ready")
	<-done
	fmt.Println("done", size)
	_, _ = os.Stdin.Read(make([]byte, 1))
	out := bufio.NewWriter(os.Stdout)
	for _, each := range arrivals {
		fmt.Fprintln(out, each.key, each.time)
	}
	out.Flush()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
