// What an extender written in Go pays before it schedules anything: it decodes kube-scheduler's question and encodes
// a reply of the same shape and size with net/http and encoding/json, the way the peers do. The header Fit tells how
// many of the names pass filter, as many as Tessera let pass.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

type args struct {
	Pod       *pod
	Nodes     *struct{ Items []json.RawMessage }
	NodeNames *[]string
}

// The part of a Pod that an extender reads; the whole type of k8s.io/api costs more.
type pod struct {
	Metadata struct {
		Name, Namespace, UID string
		Labels, Annotations  map[string]string
	}
	Spec struct {
		NodeName   string
		Containers []struct {
			Name      string
			Resources struct{ Limits, Requests map[string]string }
		}
	}
}

type filterResult struct {
	Nodes                      *struct{}
	NodeNames                  *[]string
	FailedNodes                map[string]string
	FailedAndUnresolvableNodes map[string]string
	Error                      string
}

type hostPriority struct {
	Host  string
	Score int64
}

const reason = "no card with enough free GPU utilization"

func filter(names []string, fit int) any {
	failed := make(map[string]string, len(names)-fit)
	for _, name := range names[fit:] {
		failed[name] = reason
	}
	passed := names[:fit]
	return filterResult{NodeNames: &passed, FailedNodes: map[string]string{}, FailedAndUnresolvableNodes: failed}
}

func prioritize(names []string, _ int) any {
	scores := make([]hostPriority, len(names))
	for i, name := range names {
		scores[i] = hostPriority{name, int64(i % 4)}
	}
	return scores
}

func verb(answer func([]string, int) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var asked args
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.NodeNames == nil {
			http.Error(w, "not a question", http.StatusBadRequest)
			return
		}
		fit, _ := strconv.Atoi(r.Header.Get("Fit"))
		reply, err := json.Marshal(answer(*asked.NodeNames, min(fit, len(*asked.NodeNames))))
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
		w.Write(reply)
	}
}

func main() {
	http.HandleFunc("/filter", verb(filter))
	http.HandleFunc("/prioritize", verb(prioritize))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}
