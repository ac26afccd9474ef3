// A heap of Go's under pressure: goroutines, collections, programs executed.
package main

// CGO
import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

func work(seed int) int {
	keep := [][]byte{}
	for i := 0; i < 300; i++ {
		b := make([]byte, 1<<17)
		for j := range b {
			if b[j] != 0 {
				panic("not zero")
			}
			b[j] = byte(i*7 + j%253 + seed)
		}
		keep = append(keep, b)
		if len(keep) > 60 {
			keep = keep[30:]
		}
		if i%60 == 0 {
			runtime.GC()
		}
	}
	sum := 0
	for n, b := range keep {
		for j := range b {
			if b[j] != byte((300-len(keep)+n)*7+j%253+seed) {
				panic("wrong byte")
			}
			sum += int(b[j])
		}
	}
	return sum
}
func main() {
	var all sync.WaitGroup
	sums := make([]int, 4)
	for g := range sums {
		all.Add(1)
		go func() { defer all.Done(); sums[g] = work(g) }()
	}
	for i := 0; i < 5; i++ {
		out, err := exec.Command("/bin/sh", "-c", "echo $((1 + 2))").Output()
		if err != nil || string(out) != "3\n" {
			panic(fmt.Sprint(err, string(out)))
		}
	}
	if len(os.Args) == 1 {
		if out, err := exec.Command(os.Args[0], "again").Output(); err != nil {
			panic(string(out))
		}
	}
	all.Wait()
	fmt.Println("go right")
}
