// Package compat pins the Go programs of others that tests/compat runs. gocbcore is here for its own test suites.
package compat

import _ "github.com/couchbase/gocbcore/v10"
