// Goroutines that keep maps, replace parts of them and look at all of it between collections.
package main

import (
	"crypto/sha256"
	"fmt"
	"math/rand"
	"runtime"
	"strings"
	"sync"
)

const workers, keys, rounds = 4, 40000, 5

// Memory of a C program, where there is one.
var beside = func(worker int) string { return "" }

func value(worker, key, age int) string {
	return strings.Repeat(fmt.Sprintf("%d:%d:%d ", worker, key, age), 30+key%30)
}

func work(worker int) string {
	m := map[int]string{}
	ages := make([]int, keys)
	r := rand.New(rand.NewSource(int64(worker)))
	for k := 0; k < keys; k++ {
		m[k] = value(worker, k, 0)
	}
	for age := 1; age < rounds; age++ {
		for n := 0; n < keys/4; n++ {
			k := r.Intn(keys)
			if m[k] != value(worker, k, ages[k]) {
				panic(fmt.Sprint("key ", k))
			}
			ages[k] = age
			m[k] = value(worker, k, age)
		}
		runtime.GC()
	}
	h := sha256.New()
	for k := 0; k < keys; k++ {
		if m[k] != value(worker, k, ages[k]) {
			panic(fmt.Sprint("key ", k))
		}
		h.Write([]byte(m[k]))
	}
	return fmt.Sprintf("%x %s", h.Sum(nil), beside(worker))
}

func main() {
	found := make([]string, workers)
	var all sync.WaitGroup
	for w := 0; w < workers; w++ {
		all.Add(1)
		go func(w int) {
			defer all.Done()
			found[w] = work(w)
		}(w)
	}
	all.Wait()
	for _, f := range found {
		fmt.Println(f)
	}
}
