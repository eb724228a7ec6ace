// franz-go's registry client as a command: it calls every method of pkg/sr and encodes and decodes with its Serde.
//
//	registry < task        the task and the answer are one JSON object; ../../registry_clients.py describes both
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	deadline = 30 * time.Second
	first    = `{"type":"record","name":"Order","namespace":"go","fields":[{"name":"id","type":"int"}]}`
	second   = `{"type":"record","name":"Order","namespace":"go","fields":[{"name":"id","type":"long"},` +
		`{"name":"currency","type":"string","default":"EUR"}]}`
	broken = `{"type":"record","name":"Order","namespace":"go","fields":[{"name":"other","type":"string"}]}`
)

type task struct {
	URLs     []string          `json:"urls"`
	Prefix   string            `json:"prefix"`
	User     string            `json:"user"`
	Password string            `json:"password"`
	CA       string            `json:"ca"`
	Read     map[string][]byte `json:"read"`
}

type answer struct {
	Calls map[string]any    `json:"calls"`
	Read  map[string]any    `json:"read"`
	Data  map[string][]byte `json:"data"`
}

type order struct {
	ID int `json:"id"`
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var given task
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		return err
	}
	client, err := connect(given)
	if err != nil {
		return err
	}
	walk := &walk{client: client, prefix: given.Prefix, calls: map[string]any{}}
	for _, part := range []func(context.Context){walk.subjects, walk.settings, walk.contexts, walk.imports, walk.deletions} {
		part(ctx)
	}
	found := answer{Calls: walk.calls, Read: map[string]any{}, Data: map[string][]byte{}}
	if err := exchange(ctx, client, given, &found); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func connect(given task) (*sr.Client, error) {
	options := []sr.ClientOpt{sr.URLs(given.URLs...)}
	if given.User != "" {
		options = append(options, sr.BasicAuth(given.User, given.Password))
	}
	if given.CA != "" {
		pem, err := os.ReadFile(given.CA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		options = append(options, sr.DialTLSConfig(&tls.Config{RootCAs: pool}))
	}
	return sr.NewClient(options...)
}

// A walk collects the result of each call under a name. An error is its code, or its text if it is not the registry's.
type walk struct {
	client *sr.Client
	prefix string
	calls  map[string]any
}

func (w *walk) note(name string, value any, err error) {
	var refused *sr.ResponseError
	switch {
	case errors.As(err, &refused):
		value = refused.ErrorCode
	case err != nil:
		value = err.Error()
	}
	w.calls[name] = value
}

func (w *walk) subjects(ctx context.Context) {
	subject := w.prefix + "-value"
	types, err := w.client.SupportedTypes(ctx)
	texts := make([]string, len(types))
	for i, each := range types {
		texts[i] = each.String()
	}
	sort.Strings(texts)
	w.note("types", texts, err)
	metadata := &sr.SchemaMetadata{Properties: map[string]string{"owner": "go"}, Tags: map[string][]string{"**": {"PII"}}}
	rules := &sr.SchemaRuleSet{DomainRules: []sr.SchemaRule{{
		Name: "short", Kind: sr.SchemaRuleKindCondition, Mode: sr.SchemaRuleModeWrite, Type: "CEL", Expr: "message.id > 0",
	}}}
	made, err := w.client.CreateSchema(ctx, subject, sr.Schema{Schema: first, SchemaMetadata: metadata, SchemaRuleSet: rules})
	w.note("create", []any{made.Subject, made.Version, made.Type.String(), made.Schema.Schema == first}, err)
	w.note("metadata", made.SchemaMetadata.Properties, err)
	w.note("rules", made.SchemaRuleSet.DomainRules[0].Expr, err)
	again, err := w.client.RegisterSchema(ctx, subject, made.Schema, -1, -1)
	w.note("register again", again == made.ID, err)
	byID, err := w.client.SchemaByID(ctx, made.ID)
	w.note("by id", byID.Schema == first, err)
	text, err := w.client.SchemaTextByID(ctx, made.ID)
	w.note("text by id", text == first, err)
	byGUID, err := w.client.SchemaByGUID(ctx, made.GUID)
	w.note("by guid", byGUID.Schema.Schema == first, err)
	ids, err := w.client.SchemaIDsByGUID(ctx, made.GUID)
	w.note("ids by guid", slices.Contains(ids, sr.ContextID{Context: ".", ID: made.ID}), err)
	found, err := w.client.LookupSchema(ctx, subject, made.Schema)
	w.note("lookup", found.ID == made.ID && found.Version == 1, err)
	_, err = w.client.LookupSchema(ctx, subject, sr.Schema{Schema: `"string"`})
	w.note("lookup of an unknown schema", nil, err)
	next, err := w.client.CreateSchema(ctx, subject, sr.Schema{Schema: second})
	w.note("second version", next.Version, err)
	versions, err := w.client.SubjectVersions(ctx, subject)
	w.note("versions", versions, err)
	latest, err := w.client.SchemaByVersion(ctx, subject, -1)
	w.note("latest", latest.Version, err)
	text, err = w.client.SchemaTextByVersion(ctx, subject, 1)
	w.note("text by version", text == first, err)
	_, err = w.client.SchemaByVersion(ctx, subject, 9)
	w.note("unknown version", nil, err)
	bySubject, err := w.client.Schemas(ctx, subject)
	w.note("schemas of the subject", len(bySubject), err)
	all, err := w.client.AllSchemas(sr.WithParams(ctx, sr.SubjectPrefix(subject), sr.LatestOnly))
	w.note("all schemas", len(all), err)
	named, err := w.client.SubjectsByID(ctx, next.ID)
	w.note("subjects of the id", slices.Contains(named, subject), err)
	used, err := w.client.SchemaVersionsByID(ctx, next.ID)
	w.note("versions of the id", slices.Contains(used, sr.SubjectVersion{Subject: subject, Version: 2}), err)
	listed, err := w.client.Subjects(sr.WithParams(ctx, sr.SubjectPrefix(w.prefix)))
	w.note("subjects", listed, err)
	_, err = w.client.CreateSchema(ctx, subject, sr.Schema{Schema: broken})
	w.note("incompatible", nil, err)
	_, err = w.client.CreateSchema(ctx, subject, sr.Schema{Schema: `{"type":"record"}`})
	w.note("not a schema", nil, err)
	w.references(ctx, subject)
}

func (w *walk) references(ctx context.Context, subject string) {
	outer := `{"type":"record","name":"Cart","fields":[{"name":"order","type":"go.Order"}]}`
	reference := sr.SchemaReference{Name: "go.Order", Subject: subject, Version: 2}
	made, err := w.client.CreateSchema(ctx, w.prefix+"-cart", sr.Schema{Schema: outer, References: []sr.SchemaReference{reference}})
	w.note("references", made.References, err)
	usages, err := w.client.SchemaReferences(ctx, subject, 2)
	w.note("referenced by", len(usages), err)
	_, err = w.client.DeleteSubject(ctx, subject, sr.SoftDelete)
	w.note("delete what is referenced", nil, err)
}

func (w *walk) settings(ctx context.Context) {
	subject := w.prefix + "-value"
	level := func(results []sr.CompatibilityResult) (string, error) {
		return results[0].Level.String(), results[0].Err
	}
	value, err := level(w.client.Compatibility(ctx, subject))
	w.note("level of the subject before", value, err)
	value, err = level(w.client.Compatibility(sr.WithParams(ctx, sr.DefaultToGlobal), subject))
	w.note("level with the default", value, err)
	change := sr.SetCompatibility{Level: sr.CompatFullTransitive, Normalize: true, Group: "major"}
	results := w.client.SetCompatibility(ctx, change, subject)
	w.note("set level", results[0].Level.String(), results[0].Err)
	results = w.client.Compatibility(ctx, subject)
	w.note("level", []any{results[0].Level.String(), results[0].Normalize, results[0].Group}, results[0].Err)
	// The answer names the level `compatibilityLevel`, as Confluent's does; the client reads another name.
	_, err = level(w.client.ResetCompatibility(ctx, subject))
	w.note("reset level", nil, err)
	checked, err := w.client.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), subject, -1, sr.Schema{Schema: broken})
	w.note("check", []any{checked.Is, len(checked.Messages) > 0}, err)
	mode := func(results []sr.ModeResult) (string, error) { return results[0].Mode.String(), results[0].Err }
	value, err = mode(w.client.SetMode(ctx, sr.ModeReadOnly, subject))
	w.note("set mode", value, err)
	_, err = w.client.RegisterSchema(ctx, subject, sr.Schema{Schema: `"int"`}, -1, -1)
	w.note("register in a read-only subject", nil, err)
	value, err = mode(w.client.Mode(ctx, subject))
	w.note("mode", value, err)
	value, err = mode(w.client.ResetMode(ctx, subject))
	w.note("reset mode", value, err)
	value, err = mode(w.client.Mode(ctx, subject))
	w.note("mode of the subject without its own", value, err)
	value, err = mode(w.client.Mode(ctx))
	w.note("global mode", value, err)
}

func (w *walk) contexts(ctx context.Context) {
	name := "." + w.prefix
	inside := sr.InContext(ctx, name)
	made, err := w.client.CreateSchema(inside, "s", sr.Schema{Schema: `"bytes"`})
	w.note("create in a context", []any{made.Subject == ":"+name+":s", made.ID}, err)
	names, err := w.client.Contexts(ctx)
	w.note("contexts", slices.Contains(names, name), err)
	w.note("delete a context with subjects", nil, w.client.DeleteContext(ctx, name))
	_, err = w.client.DeleteSubject(inside, "s", sr.SoftDelete)
	w.note("delete in a context", nil, err)
	_, err = w.client.DeleteSubject(inside, "s", sr.HardDelete)
	w.note("delete in a context permanently", nil, err)
	w.note("delete a context", nil, w.client.DeleteContext(ctx, name))
}

func (w *walk) imports(ctx context.Context) {
	subject := fmt.Sprintf(":.%s-import:s", w.prefix)
	results := w.client.SetMode(ctx, sr.ModeImport, subject)
	w.note("import mode", results[0].Mode.String(), results[0].Err)
	made, err := w.client.RegisterSchema(ctx, subject, sr.Schema{Schema: first}, 4711, 5)
	w.note("import", made, err)
	found, err := w.client.SchemaByVersion(ctx, subject, 5)
	w.note("imported", []any{found.ID, found.Version}, err)
}

func (w *walk) deletions(ctx context.Context) {
	subject := w.prefix + "-deleted"
	for _, text := range []string{first, second} {
		_, err := w.client.RegisterSchema(ctx, subject, sr.Schema{Schema: text}, -1, -1)
		w.note("register to delete", nil, err)
	}
	w.note("delete permanently first", nil, w.client.DeleteSchema(ctx, subject, 1, sr.HardDelete))
	w.note("delete a version", nil, w.client.DeleteSchema(ctx, subject, 1, sr.SoftDelete))
	w.note("delete a version again", nil, w.client.DeleteSchema(ctx, subject, 1, sr.SoftDelete))
	versions, err := w.client.SubjectVersions(sr.WithParams(ctx, sr.ShowDeleted), subject)
	w.note("versions with deleted ones", versions, err)
	w.note("delete a version permanently", nil, w.client.DeleteSchema(ctx, subject, 1, sr.HardDelete))
	versions, err = w.client.DeleteSubject(ctx, subject, sr.SoftDelete)
	w.note("delete the subject", versions, err)
	listed, err := w.client.Subjects(sr.WithParams(ctx, sr.SubjectPrefix(subject), sr.DeletedOnly))
	w.note("deleted subjects", len(listed), err)
	versions, err = w.client.DeleteSubject(ctx, subject, sr.HardDelete)
	w.note("delete the subject permanently", versions, err)
}

// exchange decodes what another client has encoded, and encodes for others. The data of an Avro record with one int is a
// zigzag number, that of a Protobuf message with one int32 is a tag and a number: no codec is needed for them.
func exchange(ctx context.Context, client *sr.Client, given task, found *answer) error {
	header := new(sr.ConfluentHeader)
	for name, data := range given.Read {
		id, rest, err := header.DecodeID(data)
		if err != nil {
			return err
		}
		if _, err := client.SchemaByID(ctx, id); err != nil {
			return err
		}
		if name == "protobuf" {
			if _, rest, err = header.DecodeIndex(rest, 8); err != nil {
				return err
			}
			rest = rest[1:] // the tag of field 1
		}
		if name == "json" {
			var value order
			if err := json.Unmarshal(rest, &value); err != nil {
				return err
			}
			found.Read[name] = value.ID
			continue
		}
		number, _ := binary.Varint(rest)
		if name == "protobuf" {
			unsigned, _ := binary.Uvarint(rest)
			number = int64(unsigned)
		}
		found.Read[name] = number
	}
	proto := "syntax = \"proto3\";\npackage go;\n\nmessage Order {\n  int32 id = 1;\n}\n"
	schemas := map[string]sr.Schema{
		"avro":     {Schema: first},
		"json":     {Schema: `{"type":"object","title":"Order","properties":{"id":{"type":"integer"}}}`, Type: sr.TypeJSON},
		"protobuf": {Schema: proto, Type: sr.TypeProtobuf},
	}
	encoders := map[string]func(any) ([]byte, error){
		"avro":     func(value any) ([]byte, error) { return binary.AppendVarint(nil, int64(value.(order).ID)), nil },
		"json":     json.Marshal,
		"protobuf": func(value any) ([]byte, error) { return binary.AppendUvarint([]byte{8}, uint64(value.(order).ID)), nil },
	}
	for name, schema := range schemas {
		made, err := client.CreateSchema(ctx, strings.Join([]string{given.Prefix, name, "value"}, "-"), schema)
		if err != nil {
			return err
		}
		serde := sr.NewSerde()
		options := []sr.EncodingOpt{sr.EncodeFn(encoders[name])}
		if name == "protobuf" {
			options = append(options, sr.Index(0))
		}
		serde.Register(made.ID, order{}, options...)
		if found.Data[name], err = serde.Encode(order{ID: 42}); err != nil {
			return err
		}
	}
	return nil
}
