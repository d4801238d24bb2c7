//go:build tools

// Package tools names the programs that the module file pins.
package tools

import _ "github.com/peak/s5cmd/v2"
