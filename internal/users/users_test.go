package users

import (
	"testing"
	"testing/synctest"
)

func TestCloseWaitsForTheUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c Count
		for range 2 {
			if !c.Enter() {
				t.Fatal("it is open")
			}
		}
		c.Leave()
		idle := c.Close()
		if c.Enter() {
			t.Error("a user enters after Close")
		}
		left := false
		go func() { <-idle; left = true }()
		synctest.Wait()
		if left {
			t.Error("a user is still inside")
		}
		c.Leave()
		synctest.Wait()
		if !left {
			t.Error("the last user has left")
		}
		<-c.Close()
	})
}

func TestCloseWithoutUsers(t *testing.T) {
	t.Parallel()
	var c Count
	idle := c.Idle()
	c.Close()
	<-idle
	<-c.Close()
}
