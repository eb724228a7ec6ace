// ACLs of topics with franz-go's admin client.
//
//	franz acls BOOTSTRAP add NAME PATTERN PRINCIPAL HOST OPERATION PERMISSION
//	franz acls BOOTSTRAP list|remove NAME PATTERN          an empty NAME stands for all; one JSON array
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func acls(ctx context.Context, arguments []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(arguments[0]))
	if err != nil {
		return err
	}
	defer client.Close()
	pattern, err := kmsg.ParseACLResourcePatternType(arguments[3])
	if err != nil {
		return err
	}
	admin, name := kadm.NewClient(client), arguments[2]
	filter := kadm.NewACLs().ResourcePatternType(pattern)
	if name == "" {
		filter = filter.Topics()
	} else {
		filter = filter.Topics(name)
	}
	found := [][]string{}
	switch arguments[1] {
	case "add":
		return addACL(ctx, admin, filter, arguments[4:])
	case "list":
		results, err := admin.DescribeACLs(ctx, filter.Operations().Allow().AllowHosts().Deny().DenyHosts())
		if err != nil {
			return err
		}
		for _, result := range results {
			if result.Err != nil {
				return result.Err
			}
			for _, acl := range result.Described {
				found = append(found, aclFields(acl))
			}
		}
	case "remove":
		results, err := admin.DeleteACLs(ctx, filter.Operations().Allow().AllowHosts().Deny().DenyHosts())
		if err != nil {
			return err
		}
		for _, result := range results {
			if result.Err != nil {
				return result.Err
			}
			for _, acl := range result.Deleted {
				found = append(found, aclFields(kadm.DescribedACL{
					Principal: acl.Principal, Host: acl.Host, Type: acl.Type, Name: acl.Name, Pattern: acl.Pattern,
					Operation: acl.Operation, Permission: acl.Permission,
				}))
			}
		}
	default:
		return fmt.Errorf("unknown verb %q", arguments[1])
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func addACL(ctx context.Context, admin *kadm.Client, acl *kadm.ACLBuilder, arguments []string) error {
	operation, err := kmsg.ParseACLOperation(arguments[2])
	if err != nil {
		return err
	}
	acl = acl.Operations(operation)
	if strings.EqualFold(arguments[3], "deny") {
		acl = acl.Deny(arguments[0]).DenyHosts(arguments[1])
	} else {
		acl = acl.Allow(arguments[0]).AllowHosts(arguments[1])
	}
	results, err := admin.CreateACLs(ctx, acl)
	if err != nil {
		return err
	}
	for _, result := range results {
		if result.Err != nil {
			return result.Err
		}
	}
	return nil
}

func aclFields(acl kadm.DescribedACL) []string {
	return []string{
		acl.Name, acl.Pattern.String(), acl.Principal, acl.Host, acl.Operation.String(), acl.Permission.String(),
	}
}
