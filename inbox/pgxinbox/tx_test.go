package pgxinbox

import (
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"
)

// An app can have a later pgx, whose interfaces have more methods: none of them panics when the handler has returned.
func TestEveryMethodOfPgxIsThereWhenTheTransactionHasEnded(t *testing.T) {
	t.Parallel()
	for kind, ended := range map[reflect.Type]any{
		reflect.TypeFor[pgx.Tx]():           &tx{closed: true},
		reflect.TypeFor[pgx.Rows]():         closedRows{},
		reflect.TypeFor[pgx.BatchResults](): closedBatch{},
	} {
		for i := range kind.NumMethod() {
			t.Run(kind.String()+" "+kind.Method(i).Name, func(t *testing.T) {
				t.Parallel()
				method := reflect.ValueOf(ended).MethodByName(kind.Method(i).Name)
				var args []reflect.Value
				for n := range method.Type().NumIn() {
					if !method.Type().IsVariadic() || n < method.Type().NumIn()-1 {
						args = append(args, reflect.Zero(method.Type().In(n)))
					}
				}
				for _, result := range method.Call(args) {
					if err, is := result.Interface().(error); is && err != pgx.ErrTxClosed {
						t.Error(err)
					}
				}
			})
		}
	}
}
