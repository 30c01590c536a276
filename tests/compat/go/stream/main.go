// Prints the changes of a bucket, a JSON object per line, with go-dcp's default settings: rollback mitigation,
// checkpoints and membership in documents of the bucket itself.
//
// Arguments: URL of the node's HTTP port, user, password, bucket, consumer group, membership (couchbase is the default
// one), port for go-dcp's own API, and for TLS the file of the authority; the port of the URL is that of HTTPS then, and
// the scheme http as ever, since go-dcp knows no other.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/Trendyol/go-dcp"
	"github.com/Trendyol/go-dcp/config"
	"github.com/Trendyol/go-dcp/models"
)

type change struct {
	Event   string `json:"event"`
	Key     string `json:"key"`
	Value   string `json:"value"`
	Vbucket uint16 `json:"vbucket"`
	Seqno   uint64 `json:"seqno"`
}

func main() {
	settings := &config.Dcp{
		Hosts:      []string{os.Args[1]},
		Username:   os.Args[2],
		Password:   os.Args[3],
		BucketName: os.Args[4],
	}
	if len(os.Args) > 8 {
		settings.SecureConnection, settings.RootCAPath = true, os.Args[8]
	}
	settings.Dcp.Group.Name = os.Args[5]
	settings.Dcp.Group.Membership.Type = os.Args[6]
	settings.API.Port = number(os.Args[7])                          // 8080 by default, which others may have
	settings.Dcp.Group.Membership.RebalanceDelay = time.Millisecond // 30 s by default: the wait for other members

	out := json.NewEncoder(os.Stdout)
	connector, err := dcp.NewDcp(settings, func(context *models.ListenerContext) {
		var line change
		switch event := context.Event.(type) {
		case models.DcpMutation:
			line = change{"mutation", string(event.Key), string(event.Value), event.VbID, event.SeqNo}
		case models.DcpDeletion:
			line = change{"deletion", string(event.Key), "", event.VbID, event.SeqNo}
		case models.DcpExpiration:
			line = change{"expiration", string(event.Key), "", event.VbID, event.SeqNo}
		}
		if err := out.Encode(line); err != nil {
			fail(err)
		}
		context.Ack()
	})
	if err != nil {
		fail(err)
	}
	connector.Start()
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	if err != nil {
		fail(err)
	}
	return found
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
