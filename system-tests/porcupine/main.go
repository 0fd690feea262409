// Checks by Porcupine whether a history of a replicated store is linearizable, key by key.
//
// The history is a file of JSON lines, an operation in each. The program prints a line for each key: the verdict (ok, illegal or unknown) and the
// key. Its exit status is 0 if all keys are ok, 1 if one is illegal, 2 if none is illegal and the time is over, and 3 if the file cannot be read.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// A value of a key holds in its upper bits the number of the write from which it descends: increments change the lower bits only.
const incrementBits = 20

// operation is a line of the history. Without a return its outcome is unknown.
type operation struct {
	Client   int    `json:"client"`
	Key      string `json:"key"`
	Kind     string `json:"kind"`
	Value    int64  `json:"value"`
	Expected int64  `json:"expected"`
	Call     int64  `json:"call"`
	Return   *int64 `json:"return"`
	Result   *int64 `json:"result"`
}

// state is the value of a key.
type state struct {
	present bool
	value   int64
}

var present = map[bool]int64{false: 0, true: 1}

// step is the sequential specification: whether the operation can have its result in this state, and the state after it.
func step(before, input, _ interface{}) (bool, interface{}) {
	was, op := before.(state), input.(operation)
	is := func(result int64) bool { return op.Return == nil || op.Result != nil && *op.Result == result }
	switch op.Kind {
	case "get":
		if !was.present {
			return op.Return == nil || op.Result == nil, was
		}
		return is(was.value), was
	case "set":
		return op.Return == nil || op.Result == nil, state{true, op.Value}
	case "create":
		if was.present {
			return is(0), was
		}
		return is(1), state{true, op.Value}
	case "delete":
		return is(present[was.present]), state{}
	case "add":
		sum := was.value + op.Value
		return is(sum), state{true, sum}
	case "swap":
		if was != (state{true, op.Expected}) {
			return is(0), was
		}
		return is(1), state{true, op.Value}
	}
	return false, was
}

var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: step,
	Hash: func(s interface{}) uint64 { return uint64(s.(state).value) },
}

func read(file io.Reader) (map[string][]operation, error) {
	keys := map[string][]operation{}
	lines := json.NewDecoder(file)
	lines.DisallowUnknownFields()
	for {
		var op operation
		switch err := lines.Decode(&op); {
		case errors.Is(err, io.EOF):
			return keys, nil
		case err != nil:
			return nil, err
		}
		switch op.Kind {
		case "get", "set", "create", "delete", "add", "swap":
		default:
			return nil, fmt.Errorf("no operation has the kind %q", op.Kind)
		}
		keys[op.Key] = append(keys[op.Key], op)
	}
}

// history is what Porcupine checks. A write of unknown outcome has had its effect before an operation returns that has seen it, because no two writes
// write the same value; that bounds the search.
func history(ops []operation) []porcupine.Operation {
	seen := map[int64]int64{}
	for _, op := range ops {
		if op.Return == nil || op.Result == nil {
			continue
		}
		var write int64
		switch {
		case op.Kind == "get" || op.Kind == "add":
			write = *op.Result >> incrementBits
		case op.Kind == "swap" && *op.Result == 1:
			write = op.Expected >> incrementBits
		default:
			continue
		}
		if first, ok := seen[write]; !ok || *op.Return < first {
			seen[write] = *op.Return
		}
	}
	operations := make([]porcupine.Operation, 0, len(ops))
	for _, op := range ops {
		end := int64(math.MaxInt64)
		if op.Return != nil {
			end = *op.Return
		} else if first, ok := seen[op.Value>>incrementBits]; ok && (op.Kind == "set" || op.Kind == "create" || op.Kind == "swap") {
			end = max(first, op.Call)
		}
		operations = append(operations, porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: end})
	}
	return operations
}

// check checks all keys, as many at a time as there are processors.
func check(keys map[string][]operation, timeout time.Duration) map[string]porcupine.CheckResult {
	deadline := time.Now().Add(timeout)
	results := map[string]porcupine.CheckResult{}
	var lock sync.Mutex
	var all sync.WaitGroup
	turns := make(chan struct{}, runtime.NumCPU())
	for key, ops := range keys {
		all.Add(1)
		go func(key string, ops []operation) {
			defer all.Done()
			turns <- struct{}{}
			defer func() { <-turns }()
			result := porcupine.Unknown
			// To Porcupine no time means no limit.
			if left := time.Until(deadline); left > 0 {
				result = porcupine.CheckOperationsTimeout(model, history(ops), left)
			}
			lock.Lock()
			defer lock.Unlock()
			results[key] = result
		}(key, ops)
	}
	all.Wait()
	return results
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "the time for all keys")
	flag.Parse()
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "cannot read the history:", err)
		os.Exit(3)
	}
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fail(err)
	}
	keys, err := read(file)
	if err != nil {
		fail(err)
	}
	results := check(keys, *timeout)
	names := make([]string, 0, len(results))
	for name := range results {
		names = append(names, name)
	}
	sort.Strings(names)
	words := map[porcupine.CheckResult]string{porcupine.Ok: "ok", porcupine.Illegal: "illegal", porcupine.Unknown: "unknown"}
	count := map[porcupine.CheckResult]int{}
	for _, name := range names {
		count[results[name]]++
		fmt.Println(words[results[name]], name)
	}
	switch {
	case count[porcupine.Illegal] > 0:
		os.Exit(1)
	case count[porcupine.Unknown] > 0:
		os.Exit(2)
	}
}
